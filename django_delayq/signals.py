"""Signals for logs, metrics and tracing. If a receiver raises an exception, it is logged and has no other effect.

Signals about a run are sent in its thread, before Redis has confirmed the end of the run. `job` is a `CurrentJob`. If the process is
killed, they are not sent. The mirror sends `job_ended` for every job, no matter how it ended.
"""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

job_scheduled: Final = Signal()  #: A job is published. Sent by the task, with the argument `job` (a `Job`)
job_started: Final = Signal()  #: A run starts. Sent by the task, with the argument `job` (a `CurrentJob`)
job_succeeded: Final = Signal()  #: A run has succeeded. Sent by the task, with the arguments `job` and `outcome`
job_retried: Final = Signal()  #: A run has failed and will be retried. Sent by the task, with the arguments `job` and `outcome`
job_snoozed: Final = Signal()  #: A run has raised `Snooze` or `NotYet`. Sent by the task, with the arguments `job` and `outcome`
job_failed: Final = Signal()  #: A job has failed permanently. Sent by the task, with the arguments `job` and `outcome`
job_cancelled: Final = Signal()  #: A run was cancelled. Sent by the task, with the arguments `job` and `outcome`
job_crashed: Final = Signal()  #: The process that ran a job has died. Sent in the supervisor, with `job_id` (a UUID) and `queue`
job_ended: Final = Signal()  #: A job has ended. Sent at least once, by the task or None, with `job`, `row`, `state` and `cause`
before_fork: Final = Signal()  #: The supervisor is about to fork a process. Sent with the arguments `worker` and `process`
process_started: Final = Signal()  #: A process was forked. Sent in that process, with the arguments `worker` and `process`
process_stopped: Final = Signal()  #: A process is about to exit. Sent in that process, with the arguments `worker` and `process`
worker_started: Final = Signal()  #: A worker has started. Sent in the supervisor, with the argument `worker`
worker_stopped: Final = Signal()  #: A worker is about to exit. Sent in the supervisor, with the argument `worker`
store_unavailable: Final = Signal()  #: A job couldn't be published. Sent with the argument `error`
command_refused: Final = Signal()  #: Redis rejects an optional command. Sent with `where`, `command`, `cause` and `instead`
