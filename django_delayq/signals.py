"""Signals: what happened, for logs, metrics and tracing. Sent after the fact; a receiver's error is logged and changes nothing.

About a run, the worker sends them in the process and thread that runs the task, with the `Task` as sender and `job` (a `CurrentJob`) as
argument; those about its end carry `outcome`. About a job that has ended for good, whatever the cause, the mirror sends `job_ended`.
"""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

job_scheduled: Final = Signal()  #: the sender is the task; with job (a Job)
job_started: Final = Signal()  #: the sender is the task; with job (a CurrentJob)
job_succeeded: Final = Signal()  #: the sender is the task; with job (a CurrentJob) and outcome
job_retried: Final = Signal()  #: the sender is the task; with job (a CurrentJob) and outcome
job_snoozed: Final = Signal()  #: the sender is the task; with job (a CurrentJob) and outcome, "snooze" or "ask" by its kind
job_failed: Final = Signal()  #: the sender is the task; with job (a CurrentJob) and outcome
job_cancelled: Final = Signal()  #: the sender is the task; with job (a CurrentJob) and outcome
job_crashed: Final = Signal()  #: the sender is None; with job_id (a UUID) and queue; sent by the supervisor
job_ended: Final = Signal()  #: the sender is the task, or None; with job (a Job), row (its row, or None), state, and cause (EndCause)
before_fork: Final = Signal()  #: the sender is None; with worker and process; sent in the supervisor, before it forks that process
process_started: Final = Signal()  #: the sender is None; with worker and process, its name; sent in each process, after its fork
process_stopped: Final = Signal()  #: the sender is None; with worker and process; sent there when its work is done, unless it is killed
worker_started: Final = Signal()  #: the sender is None; with worker
worker_stopped: Final = Signal()  #: the sender is None; with worker
store_unavailable: Final = Signal()  #: the sender is None; with error
command_refused: Final = Signal()  #: the sender is None; with where, command, cause and instead; an optional command, once per process
