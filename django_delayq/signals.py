"""Signals for logs, metrics and tracing. They are sent after the fact. An exception of a receiver is logged, and changes nothing.

The worker sends the signals of a run in the thread of the run, before Redis has confirmed its end, with `job` (a `CurrentJob`). If that
process dies, it sends none. The mirror sends `job_ended` for every job, whatever ended it.
"""

from __future__ import annotations

from typing import Final

from django.dispatch import Signal

job_scheduled: Final = Signal()  #: a job is published; sent by the task, with `job` (a `Job`)
job_started: Final = Signal()  #: a run starts; sent by the task in the thread of the run, with `job` (a `CurrentJob`)
job_succeeded: Final = Signal()  #: the run has succeeded; sent by the task, with `job` and `outcome`
job_retried: Final = Signal()  #: the run has failed, and the job runs again; sent by the task, with `job` and `outcome`
job_snoozed: Final = Signal()  #: the run raised `Snooze` or `NotYet`; sent by the task, with `job` and `outcome`
job_failed: Final = Signal()  #: the job has failed for good; sent by the task, with `job` and `outcome`
job_cancelled: Final = Signal()  #: the run was cancelled; sent by the task, with `job` and `outcome`
job_crashed: Final = Signal()  #: the process of a run died; sent by None in the supervisor, with `job_id` (a UUID) and `queue`
job_ended: Final = Signal()  #: a job has ended; sent at least once, by the task or None, with `job`, `row`, `state` and `cause`
before_fork: Final = Signal()  #: the supervisor is about to fork a process; sent by None, with `worker` and `process`
process_started: Final = Signal()  #: a process was forked; sent by None in that process, with `worker` and `process`
process_stopped: Final = Signal()  #: a process has done its work; sent by None in that process, with `worker` and `process`
worker_started: Final = Signal()  #: a worker starts; sent by None in the supervisor, with `worker`
worker_stopped: Final = Signal()  #: a worker stops; sent by None in the supervisor, with `worker`
store_unavailable: Final = Signal()  #: a job could not be published; sent by None, with `error`
command_refused: Final = Signal()  #: Redis refuses an optional command; by None, with `where`, `command`, `cause`, `instead`
