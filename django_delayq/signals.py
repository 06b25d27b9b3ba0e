"""Signals: what happened, for logs, metrics and tracing. Sent after the fact; a receiver's error is logged and changes nothing.

About a run, the worker sends them in the process and thread that runs the task, with the `Task` as sender and `job` (a `CurrentJob`) as
argument; those about its end carry `outcome`. About a job that has ended for good, whatever the cause, the mirror sends `job_ended`.
"""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

job_scheduled: Final = Signal()  # sender: Task; job: the handle
job_started: Final = Signal()  # sender: Task; job
job_succeeded: Final = Signal()  # sender: Task; job, outcome
job_retried: Final = Signal()  # sender: Task; job, outcome
job_snoozed: Final = Signal()  # sender: Task; job, outcome
job_failed: Final = Signal()  # sender: Task; job, outcome
job_cancelled: Final = Signal()  # sender: Task; job, outcome
job_crashed: Final = Signal()  # sender: None; job_id, queue; sent by the supervisor
job_ended: Final = Signal()  # sender: Task, or None; job: a Job; row: its row, or None; state; cause: an EndCause
worker_started: Final = Signal()  # sender: None; worker
worker_stopped: Final = Signal()  # sender: None; worker
store_unavailable: Final = Signal()  # sender: None; error
