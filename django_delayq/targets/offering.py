"""Offers: `offer` schedules a message as a job of the task `django_delayq.offer`, and a worker pushes it to a list or a stream."""

from __future__ import annotations

from random import uniform
from typing import Any, Final, Unpack

from django_delayq import codec, conf
from django_delayq.exceptions import DelayqError, LeaseLost, Snooze, StoreUnavailable, TargetRefused
from django_delayq.failpoints import failpoint
from django_delayq.producer.async_api import like, refuse_loop
from django_delayq.producer.job import Job
from django_delayq.producer.options import JobOptions
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, make_task, registry
from django_delayq.setting_readers import OfferTarget
from django_delayq.states import OFFER
from django_delayq.store.connection.error_replies import StoreError, StoreRefused
from django_delayq.store.scripts.queue import OfferReply
from django_delayq.text import nearest
from django_delayq.worker.current import CurrentJob, running

NAME: Final = OFFER
UNLISTED_PAUSE: Final = 60.0  # about how many seconds a job waits for a worker whose settings list its target
AWAY_PAUSE: Final = 5.0  # the same for Redis
TRIES: Final = 2  # in one run, because a reply may be lost
TEXTS: Final = {
    "target_unknown": "{target!r} is not listed in DELAYQ['TARGETS']. {known}",
    "target_misspelt": "{target!r} is not listed in DELAYQ['TARGETS'] (did you mean {near!r}?). {known}",
    "target_type": "The target {target!r}: the key {key!r} is not a {kind}, so nothing was pushed. Rename the key of the target, or "
    "delete the key.",
    "target_full": "The target {target!r}: Redis has no memory left (maxmemory), so nothing was pushed to the key {key!r}. Read the "
    "entries, lower its MAXLEN, or give Redis more memory.",
    "target_error": "The target {target!r}: Redis refused to push to the key {key!r}: {cause} Check the rights of its user: `delayq "
    "doctor` prints the command that allows it.",
    "unlisted": "The target {target!r} is not listed in DELAYQ['TARGETS'] of this worker; the job waits for a worker that lists it.",
    "away": "Whether it was offered is not known yet: {cause}",
    "gone": "Redis lost this run; the job is offered when it is restored.",
    "cancel": "It was cancelled before it was offered.",
}


class OfferFailed(DelayqError):
    """Redis refused a push, so nothing was pushed. `fields`: `target` and `key`."""

    code = "offer_failed"


class Offers(Task[..., Any]):
    """The task. Its default queue is "default", or the first queue of the settings."""

    own = True

    @property
    def queue(self) -> str:
        """The queue in the current settings."""
        return conf.get().usual_queue

    @queue.setter
    def queue(self, value: str) -> None:
        pass  # the settings decide


def offer(message: Any, *, to: str, **options: Unpack[JobOptions]) -> Job:
    """Schedules a message that a worker writes to a Redis list or stream: `offer({"order": 7}, to="shipping", delay="2m")`.

    Args:
        message: Any JSON value. Readers receive it along with the job's id.
        to: The name of a target in `DELAYQ["TARGETS"]`.
        options: The options of `schedule`.

    Raises:
        TargetRefused: The target isn't listed.
        As `schedule`.
    """
    refuse_loop("delayq.aoffer(…)")
    _check(to)
    return offers.using(**options).schedule(message, to=to)


@like(offer)
async def aoffer(message: Any, *, to: str, **options: Unpack[JobOptions]) -> Job:
    """Async version of `offer`. It uses its own transaction."""
    _check(to)
    return await offers.using(**options).aschedule(message, to=to)


def _check(to: str) -> None:
    targets = conf.get().targets
    if isinstance(to, str) and to in targets:
        return
    known = f"Add it there; the targets listed are: {', '.join(sorted(targets))}." if targets else "Add it there."
    near = nearest(to, targets)
    code = "target_misspelt" if near else "target_unknown"
    raise TargetRefused(TEXTS[code].format(target=to, near=near, known=known), code=code, target=to, **({"near": near} if near else {}))


def push(message: Any, *, to: str) -> dict[str, str]:
    """Pushes the message once. Returns `to`, and `place`: the id of the stream entry, or the length of the list."""
    job = running(f"the task {NAME}")
    config = conf.get()
    target = config.targets.get(to)
    if config.inline:  # without Redis; the call was checked
        return {"to": to, "place": ""}
    if target is None:
        raise Snooze(_jittered(UNLISTED_PAUSE), TEXTS["unlisted"].format(target=to))
    reply = _push(job, target, codec.dumps(message))
    if reply.status == "lost":
        raise LeaseLost(f"job {job.short_id}: another worker has the job; nothing was pushed")
    if reply.status in ("gone", "cancel"):  # settling ends the second as cancelled
        raise Snooze(_jittered(AWAY_PAUSE), TEXTS[reply.status])
    return {"to": to, "place": reply.place}


def _push(job: CurrentJob, target: OfferTarget, body: bytes) -> OfferReply:
    fields = {"target": target.name, "key": target.key, "kind": target.kind}
    left = TRIES
    while True:
        left -= 1
        try:
            store = stores.with_job(job.queue, job.id)
            failpoint("offer.push")
            reply = store.offer(target, body, id=job.short_id, attempt=job.attempt, nonce=job.nonce, worker=job.worker)
            failpoint("offer.pushed")
            return reply
        except StoreUnavailable as error:
            if isinstance(error, StoreRefused) and error.full:
                raise _failure("target_full", **fields) from None
            # The push may have happened, so the job must not fail here.
            if not left:
                raise Snooze(_jittered(AWAY_PAUSE), TEXTS["away"].format(cause=error)) from error
        except StoreError as error:
            code = "target_type" if error.reply.startswith("WRONGTYPE") else "target_error"
            raise _failure(code, **fields, cause=error) from None


def _failure(code: str, **fields: Any) -> OfferFailed:
    text = TEXTS[code].format(**fields)
    return OfferFailed(text, code=code, target=fields["target"], key=fields["key"])


def _jittered(seconds: float) -> float:
    return seconds * uniform(0.5, 1.5)


offers: Final = make_task(Offers, push, where=f"the task {NAME}", name=NAME)
registry.add(offers)
