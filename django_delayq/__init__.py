"""django-delayq: a delay queue on Redis for Django that people can trust with money.

import django_delayq as delayq

@delayq.task(queue="orders")
def close_order(order_id: int) -> None: ...

delayq.schedule(close_order, order.pk, delay="30m", key=f"close-order:{order.pk}")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from django_delayq.exceptions import (
    Cancelled,
    ConfigError,
    DelayqError,
    Fail,
    GaveUp,
    JobFailed,
    KeyTaken,
    LeaseLost,
    LockTaken,
    NotFinished,
    NotYet,
    PayloadError,
    PayloadTooLarge,
    QueueUnknown,
    ResultGone,
    Retry,
    Snooze,
    SoftTimeout,
    StoreUnavailable,
    TargetRefused,
    UnknownTask,
)
from django_delayq.ladder import Ladder
from django_delayq.locks.lock import Lock, lock
from django_delayq.periodic.declarations import periodic
from django_delayq.producer.acts import (
    acancel,
    aforget,
    arequeue,
    areschedule,
    arun_now,
    cancel,
    forget,
    requeue,
    reschedule,
    run_now,
)
from django_delayq.producer.job import Job, aget, get
from django_delayq.producer.options import hint_of_method as _hint_of_method
from django_delayq.producer.queues import PauseReply, apause, aresume, pause, resume
from django_delayq.producer.schedule import aschedule, aschedule_many, schedule, schedule_many
from django_delayq.producer.task import Task, task
from django_delayq.states import Change, State
from django_delayq.worker.current import CurrentJob, current, once

if TYPE_CHECKING:
    from django_delayq.messages.message import Message, MessageBatch
    from django_delayq.messages.pull import apull, pull
    from django_delayq.messages.push import apush, push
    from django_delayq.producer.batch import JobBatch, batch, get_batch
    from django_delayq.producer.rates import RateReply, aset_rate, set_rate
    from django_delayq.targets.delivery import adeliver, deliver
    from django_delayq.targets.offering import aoffer, offer

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "Change",
    "ConfigError",
    "CurrentJob",
    "DelayqError",
    "Fail",
    "GaveUp",
    "Job",
    "JobBatch",
    "JobFailed",
    "KeyTaken",
    "Ladder",
    "LeaseLost",
    "Lock",
    "LockTaken",
    "Message",
    "MessageBatch",
    "NotFinished",
    "NotYet",
    "PauseReply",
    "PayloadError",
    "PayloadTooLarge",
    "QueueUnknown",
    "RateReply",
    "ResultGone",
    "Retry",
    "Snooze",
    "SoftTimeout",
    "State",
    "StoreUnavailable",
    "TargetRefused",
    "Task",
    "UnknownTask",
    "acancel",
    "adeliver",
    "aforget",
    "aget",
    "aoffer",
    "apause",
    "apull",
    "apush",
    "arequeue",
    "areschedule",
    "aresume",
    "arun_now",
    "aschedule",
    "aschedule_many",
    "aset_rate",
    "batch",
    "cancel",
    "current",
    "deliver",
    "forget",
    "get",
    "get_batch",
    "lock",
    "offer",
    "once",
    "pause",
    "periodic",
    "pull",
    "push",
    "requeue",
    "reschedule",
    "resume",
    "run_now",
    "schedule",
    "schedule_many",
    "set_rate",
    "task",
]


# Loaded on first use, or by `apps` if the settings need them: projects without messages, deliveries and offers do not load them.
_LATER: Final = {
    name: module
    for module, names in {
        "messages.message": ("Message", "MessageBatch"),
        "messages.pull": ("apull", "pull"),
        "messages.push": ("apush", "push"),
        "producer.batch": ("JobBatch", "batch", "get_batch"),
        "producer.rates": ("RateReply", "aset_rate", "set_rate"),
        "targets.delivery": ("adeliver", "deliver"),
        "targets.offering": ("aoffer", "offer"),
    }.items()
    for name in names
}
_OF_CURRENT_JOB: Final = ("attempt", "cancel_requested", "check_lease", "is_last_attempt", "progress", "time_left")


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            said = f"module {__name__!r} has no attribute {name!r}"
            if name in _OF_CURRENT_JOB:
                said += f"; inside a task, use delayq.current().{name}"
            elif hint := _hint_of_method("close_order", name):
                said += f". Here it is {hint}"
            raise AttributeError(said)  # with obj and name, Python suggests the right name
        found = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
