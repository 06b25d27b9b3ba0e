"""The exceptions of the package: errors below `DelayqError`, and exceptions below `ControlFlow` that tasks raise to end a run.

Messages state what happened, where, and the next step. Errors also have a code and fields. Code that translates an error, or decides
by it, uses these and never parses the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Final
from uuid import UUID

from django_delayq import durations

SHORTEST_SNOOZE: Final = 1.0  # seconds; each run of a job costs more than it costs to wait

# The English text of an error by its code. Errors of other codes bring their text along.
_AWAY: Final = "Redis at {where} is not available: {cause}. "
_REFUSED: Final = "Redis at {where} refused the command, and nothing was changed: {cause}. "
_MISFIT: Final = "{task}{signature} cannot be called with these arguments: {cause}."
_UNLISTED: Final = 'The queue {name!r} is not listed in DELAYQ["QUEUES"]'
_LIST_IT: Final = "Add it there, so that a worker serves it; the queues listed are: {listed}."
TEXTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "redis_away": _AWAY + "Check that the server is running. The request may have been carried out.",
        "redis_unreached": _AWAY + "Check that the server is running and that this host can reach it. Nothing was sent.",
        "redis_clients": _REFUSED + "Increase maxclients, or close other connections.",
        "redis_loading": _AWAY + "The server is loading its data. Try again in a moment.",
        "redis_login": _REFUSED + "Check the user and the password in DELAYQ['REDIS'].",
        "redis_entry": _AWAY + "Check the user, the password and the database number in DELAYQ['REDIS'], and the type of the server.",
        "redis_readonly": _REFUSED + "The server does not accept writes. Wait until the failover has ended, or set DELAYQ['REDIS'] "
        "to the primary.",
        "redis_replicas": _REFUSED + "Start its replicas, or reduce min-replicas-to-write.",
        "redis_full": _REFUSED + "The server has no memory left. Increase maxmemory, or delete data.",
        "redis_disk": _REFUSED + "The server cannot save its data. Check its disk and its log.",
        "redis_busy": _REFUSED + "A script of another client blocks the server. Try again later.",
        "redis_rights": _REFUSED + "Give the Redis user the rights that `manage.py delayq settings REDIS` lists.",
        "events_full": _REFUSED + "Run a worker with the role mirror, and check its log.",
        "bad_record": _REFUSED + "Redis cannot read the record of the job.",
        "restoring": _REFUSED + "Try again in a moment.",
        "redis_cluster": "Redis at {where} is a node of a Redis Cluster, but DELAYQ['REDIS'] refers to it as a single server: {cause}. "
        "Use a redis+cluster://… URL. To see it, run manage.py delayq doctor.",
        "redis_slot": "Redis at {where} cannot do this now: {cause}. The Cluster is replacing a master or moving a slot. Try again.",
        "replicas_lack": "The change is in Redis and on {found} of {wanted} replicas. If Redis at {where} fails now, the change may "
        "be lost. Check that its replicas are running, and try again.",
        "replicas_unasked": "The change is in Redis at {where}. The server rejected WAIT, which counts the replicas that have the "
        "change: {cause}. Allow this command, or remove REPLICAS from the settings.",
        "redis_cooldown": "Redis at {where} is not available. The last attempt failed a moment ago.",
        "redis_left_alone": "Redis at {where} failed a moment ago. The next attempt is made in {seconds:.0f} s: {cause}.",
        "server_replaced": "The server that answered for job {job} was replaced by another server, on which the job has not "
        "changed. The change is sent there soon. Try again when DELAYQ['REDIS'] leads to the new server.",
        "format_newer": "The queue {queue!r} has format {found} in Redis, but this process supports formats up to {known} only, so "
        "it does not use the queue. Upgrade django-delayq in this process, and restart it.",
        "site_other": "Redis at {where} has the queue {queue!r} of another site: this database is site {ours}, but the queue "
        "belongs to site {theirs}. Nothing was changed. Use another DELAYQ['PREFIX'] or another Redis database for this project. If "
        "the queue belongs to this project and the site has moved, run manage.py delayq adopt.",
        "site_workers": "Redis at {where} has workers of another site under this prefix: this database is site {ours}, but the "
        "workers belong to site {theirs}. Nothing was changed. Use another DELAYQ['PREFIX'] or another Redis database for this "
        "project. If this site has moved, run manage.py delayq adopt.",
        "site_moved": "Redis at {where} has no jobs of the queue {queue!r} of site {ours}, which was last at {known}. This database "
        "may be a copy, so this process writes nothing to Redis, runs no jobs and sends nothing. If the site has moved, or to run "
        "jobs from this copy, run manage.py delayq adopt.",
        "site_behind": "Redis at {where} is ahead of this database in the queue {queue!r}: the mirror has reached {theirs} in "
        "Redis, but site {ours} has recorded {known}. Either another database with the same id records this queue, or this database "
        "lost commits. This process claims and publishes no jobs of the queue until you adopt it, even if Redis is wiped. For a "
        "copy of the database, use another DELAYQ['PREFIX'] or another Redis database. To continue with this one, run manage.py "
        "delayq adopt.",
        "site_unknown": "The id of this site could not be read from the database: {cause}. Nothing is written to Redis until then. "
        "Check the database, and run manage.py migrate.",
        "far_locked": "Another transaction has held {what}, a far job or the key of one, for more than {seconds} s. Nothing was "
        "changed. Try again, and keep transactions that schedule with a key short.",
        "deadlock": "Two transactions wait for each other, and the database ended the wait of this one for the key or job {what}. This "
        "call changed nothing. Roll back the whole transaction, and repeat it. If your transactions schedule several keys, use the "
        "same order in all of them, or one call of schedule_many().",
        "period_key_locked": "Another transaction that takes the same key has been open for more than 2 s. Nothing was scheduled. "
        "Try again.",
        "far_key_contested": "The key {key!r} of queue {queue!r} changes its holder faster than it can be read. Nothing was "
        "changed. Try again.",
        "far_key_unknown": "Jobs of queue {queue!r} are missing in Redis at the moment, so the holder of the key {key!r} is not "
        "known. Try again.",
        "partitions_away": "Nothing was changed in {partitions}, which cannot be reached: {cause} The other partitions have the "
        "change. Try again.",
        "redis_answered": "Redis at {where} answered: {cause}.",
        "task_unknown": "No task named {name!r} is registered in this process. Workers know the tasks in the tasks modules of "
        "installed apps and in DELAYQ['TASK_MODULES']. Check whether it was renamed or removed, or whether a deploy is in progress.",
        "task_version": "This process has version {known} of the task {task}, and it does not understand version {version}, with which "
        "the job was scheduled. Check whether a deploy is in progress, or add an upgrade from that version.",
        "task_upgrade": "The upgrade of the arguments of the task {task} from version {version} has failed: {cause}. Correct it.",
        "queue_unknown": _UNLISTED + ". " + _LIST_IT,
        "queue_misspelt": _UNLISTED + " (did you mean {near!r}?). " + _LIST_IT,
        "json": "these bytes are not strict JSON: {cause}",
        "json_place": "these bytes are not strict JSON: {cause}",
        "argument_missing": _MISFIT,
        "argument_surplus": _MISFIT,
        "argument_unknown": _MISFIT,
        "argument_twice": _MISFIT,
        "arguments": _MISFIT,
        "argument_type": "{task}: its argument {argument} has the annotation {annotation}, but the value is {given}. Pass a value "
        "of that type, or correct the annotation. DELAYQ['CHECK_TYPES'] turns this check on and off.",
        "message_arguments": "a message takes one positional argument, its body, but {given} were given",
        "own_task": "{task}: the function that schedules this task, such as delayq.deliver, makes its arguments. Call that function "
        "again",
        "payload_size": "{task}: the arguments are {size:,} bytes of JSON, and the limit is {limit:,} (MAX_PAYLOAD); store the content "
        "in the database or a file, and pass its id",
        "key_held": "the key is held by the unfinished job {holder}; cancel or reschedule it, or choose another on_conflict",
        "lock_taken": "The lock {lock!r} is held by {holder} since {since:%Y-%m-%d %H:%M:%S%z}; its lease ends in {left:.0f} s, "
        "unless it is extended. Wait longer (wait=), or try again later.",
        "lock_lost": "The lock {lock!r} is lost: its lease expired, or Redis lost its data. Another holder may have the lock now. "
        "Stop, and write nothing more. To reject late writes of this holder, compare its fence, {fence}.",
        "lock_outside": "The lock {lock!r} is not held: its block has not begun, or has ended. Use it within the block.",
        "lock_forked": "The lock {lock!r} belongs to the parent of this process, so this process does not hold it. Acquire it in "
        "this process.",
        "result_size": "{task}: the return value is {size:,} bytes of JSON, and at most {limit:,} can be kept (MAX_PAYLOAD); store the "
        "content in the database or a file, and return its id",
        "gave_up": "The task still raised NotYet after its last poll delay (number {steps}). {reason}",
        "not_finished": "Job {job} has not ended yet. Give result() a longer timeout, or ask again.",
        "end_unknown": "The outcome of job {job} is not known, because no event reports its end. Inspect the job, and decide: "
        "manage.py delayq inspect {job}",
        "result_gone": "No row has the result of job {job}: the job is unknown, or DELAYQ['AUDIT'] or DELAYQ['RETENTION'] of the "
        "queue {queue!r} does not keep it.",
        "actor_inactive": "{actor} is no longer active, so the operation stops.",
        "value_depth": "{path} is nested more than {most} levels deep; pass a flatter value, or store it and pass its id",
        "value_digits": "{path} is an int of more than 4,000 digits; pass it as text, hex(value)",
        "value_surrogate": "{path} contains half of a surrogate pair, which UTF-8 cannot encode; pass valid text, such as "
        'value.encode("utf-8", "replace").decode()',
        "name_surrogate": "{path} has the key {name} with half of a surrogate pair; pass keys of valid text",
        "url": "Deliveries cannot use this URL: {why}. Write a URL such as https://partner.example/hook.",
        "url_scheme": "A delivery goes to http:// or https://, not to {scheme!r}.",
        "url_userinfo": "The URL for {target} contains a user or a password, which logs would show. Remove it, and name a "
        'secret of DELAYQ["HTTP"]["SECRETS"] in a header: headers={{"Authorization": header_secret(…)}}.',
        "address_refused": "{target} is the address {address} ({kind}), to which deliveries are not allowed. To allow it, list its "
        'network in DELAYQ["HTTP"]["ALLOW"].',
        "permission_gone": "{actor} no longer has the permission {permission}.",
    }
)

NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})


class DelayqError(Exception):
    """The base class of the package's errors.

    Args:
        args: The message. The default is the message of the code, filled in with the fields.
        code: A short name for the error. The default is that of the class.
        fields: Values that describe the error.
    """

    code = "error"
    fields: Mapping[str, Any] = NO_FIELDS
    texts: ClassVar[Mapping[str, str]] = TEXTS  # the default messages by code

    def __init__(self, *args: object, code: str = "", **fields: Any) -> None:
        super().__init__(*(args or ((self.texts[code].format(**fields),) if code in self.texts else ())))
        if code:
            self.code = code
        if fields:
            self.fields = fields

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by __init__, which a subclass may give other parameters.
        return _again, (type(self), self.args), vars(self)


def _again(kind: type[DelayqError], args: tuple[object, ...]) -> DelayqError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class ConfigError(DelayqError):
    """A setting or an option is invalid. This is raised before anything is scheduled or run.

    The text consists of `message` and an optional `hint`, which are also fields.
    """

    code = "config"

    def __init__(self, message: str = "", *args: object, hint: str = "", code: str = "", **fields: Any) -> None:
        told = {"message": message, "hint": hint} if hint else {}
        given = (f"{message} {hint}" if hint else message, *args) if message else args
        super().__init__(*given, code=code, **told, **fields)


class QueueUnknown(DelayqError):
    """The queue is not listed in `DELAYQ["QUEUES"]`."""

    code = "queue_unknown"


class UnknownTask(DelayqError):
    """No task with this name is registered."""

    code = "task_unknown"


class TargetRefused(DelayqError):
    """A URL or a target is not allowed. `code` contains the reason, and `fields["target"]` the target."""

    code = "target_refused"


class PayloadError(DelayqError):
    """Arguments, options or a key cannot be stored, or a stored record cannot be read."""

    code = "payload"


class PayloadTooLarge(PayloadError):
    """The arguments are larger than `MAX_PAYLOAD`. Store the content elsewhere, and pass its id."""

    code = "payload_size"


class UnknownVersion(PayloadError):
    """A job was scheduled with a version of its task that this process does not understand."""

    code = "task_version"


class KeyTaken(DelayqError):
    """An unfinished job has the key, and `on_conflict` does not allow a second job. `holder` is the id of that job."""

    code = "key_held"

    def __init__(self, message: str = "", *, holder: UUID, code: str = "") -> None:
        super().__init__(*filter(None, [message]), code=code or self.code, holder=holder)
        self.holder = holder


class StoreUnavailable(DelayqError):
    """Redis could not be reached, did not respond in time, or rejected the call. If `nothing_done` is True, nothing was changed. You
    can call the function again once the cause is fixed. Otherwise, the change may have been made. It is safe to repeat a cancellation
    or a new date. A repeated requeue does nothing, unless the job has failed again in the meantime. Calling `schedule()` again creates
    another job. `jobs` contains the ids of the jobs with redis
    durability that may not have been scheduled. Pass them to `delayq.get` to find out.
    """

    code = "store_unavailable"
    nothing_done = False

    def __init__(self, *args: object, jobs: tuple[UUID, ...] = (), code: str = "", **fields: Any) -> None:
        super().__init__(*args, code=code, **fields)
        self.jobs = jobs

    @property
    def job(self) -> UUID | None:
        """The first id in `jobs`, or None. For a call of `schedule()`, it is the only one."""
        return self.jobs[0] if self.jobs else None


class GaveUp(DelayqError):
    """The error of a job whose task raised `NotYet` again after the last `poll` delay. `fields` contains the number of `steps` and the
    last `reason`.
    """

    code = "gave_up"

    def __init__(self, message: str = "", *, steps: int, reason: str = "") -> None:
        super().__init__(*filter(None, [message]), code=self.code, steps=steps, reason=reason)


class JobFailed(DelayqError):
    """Raised by `Job.result()` if the job failed or was cancelled. `fields` contains `job`, `state`, and `error`, the error of its last
    attempt or "".
    """

    code = "job_failed"

    def __init__(self, message: str = "", *, job: str = "", state: str = "failed", error: str = "") -> None:
        text = f"Job {job} {'was cancelled' if state == 'cancelled' else f'has {state}'}{f': {error}' if error else '.'}"
        super().__init__(message or text, code=self.code, job=job, state=state, error=error)


class NotFinished(DelayqError, TimeoutError):
    """Raised by `Job.result()` if the job has not ended in time."""

    code = "not_finished"


class ResultGone(DelayqError):
    """Raised by `Job.result()` if no row contains the result. The job is unknown or unresolved, or the settings don't keep its row."""

    code = "result_gone"


class LeaseLost(DelayqError):
    """A run no longer owns its job, a consumer no longer holds a message, or a block no longer holds its lock. Another process may have
    it. Don't write anything else.
    """

    code = "lease_lost"


class LockTaken(DelayqError):
    """Another holder had the lock during the whole wait. `fields` contains the name of the `lock`, its `holder`, the date `since` when
    it has been held, the seconds for which it has been `held`, and the seconds `left` until its lease expires.

    If a task doesn't catch this exception, its job is snoozed for as long as it has waited for the lock, from 1 to 10 seconds.
    """

    code = "lock_taken"

    def __init__(self, message: str = "", *, lock: str, holder: str, since: datetime, held: float, left: float) -> None:
        super().__init__(*filter(None, [message]), code=self.code, lock=lock, holder=holder, since=since, held=held, left=left)

    @property
    def reason(self) -> str:
        """The reason for the postponement."""
        return f"waits for lock {self.fields['lock']}"


class ControlFlow(Exception):
    """The base class of the exceptions that a task raises to end its run. They aren't errors, but `except Exception` in a task catches
    them.
    """

    unreasoned = ""  # the text without a reason

    def __init__(self, reason: str = "", *args: object) -> None:
        super().__init__(*(args or (reason,)))
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or self.unreasoned


class Retry(ControlFlow):
    """Raise this exception in a task to run the job again. The attempt counts. `delay` is a timedelta, a number of seconds or text. The
    default is the task's backoff.
    """

    unreasoned = "retry"

    def __init__(self, delay: durations.Delay | None = None, reason: str = "") -> None:
        super().__init__(reason, delay, reason)
        self.delay = None if delay is None else durations.seconds(delay)


class Snooze(ControlFlow):
    """Raise this exception in a task to run the job again later. The attempt doesn't count. `delay` is a timedelta, a number of seconds
    or text. It must be at least one second.
    """

    unreasoned = "snooze"

    def __init__(self, delay: durations.Delay, reason: str = "") -> None:
        super().__init__(reason, delay, reason)
        self.delay = max(SHORTEST_SNOOZE, durations.seconds(delay))


class NotYet(ControlFlow):
    """Raise this exception in a task if the result that it is waiting for isn't ready yet. The job runs again after the next `poll`
    delay. The attempt doesn't count. After the last delay, the job fails with `GaveUp`.
    """

    unreasoned = "not yet"


class Fail(ControlFlow):
    """Raise this exception in a task to fail the job without a retry."""

    unreasoned = "failed by the task"


class Skip(ControlFlow):
    """Raised by code that runs around a task to prevent the run. The job is cancelled, and its row contains the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Cancelled(BaseException):
    """Raised in a task if its job is aborted with `cancel(abort=True)`, at most once.

    This class is a BaseException, so `except Exception` doesn't catch it. A task has five seconds to clean up. Afterwards, the job is
    cancelled. In a coroutine, `asyncio.CancelledError` is raised instead.
    """


class SoftTimeout(Exception):
    """Raised in a task when its timeout has passed.

    A task can catch this exception to clean up or to return a result. If it doesn't catch it, the attempt fails. If the task doesn't
    end, its process is stopped a little later.
    """
