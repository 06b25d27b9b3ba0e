"""Effects that happen once: a row of `Step`, unique per job and name, is committed together with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, IntegrityError, transaction

from django_delayq import clock, codec, conf
from django_delayq.effects import Run
from django_delayq.exceptions import PayloadError
from django_delayq.failpoints import failpoint
from django_delayq.models import Job, Step
from django_delayq.states import State

WHOLE = ""  # the name of the step that is the whole run


class DatabaseEffects:
    """Whoever commits first has done it. A run that comes second, late or stale, finds the step when it begins, or fails to insert
    it when it ends; then all that it has written is rolled back with it.
    """

    def run(self, run: Run, call: Callable[[], Any]) -> Any:
        """See `Effects.run`.

        Raises:
            LeaseLost: another worker has the job; nothing is written.
            RuntimeError: there is a transaction open already, so that the effects would not be committed by this one.
        """
        using = conf.get().database
        if (done := _find(run, WHOLE, using)) is not None:
            return done.result
        try:
            with transaction.atomic(using=using, durable=True):
                result = call()
                run.check_lease()
                kept = _kept(result, conf.get().queue(run.queue).max_payload)
                Step.objects.using(using).create(job_id=run.id, fence=run.fence, at=clock.now(), result=kept)
                _settle(run, kept, using)
                failpoint("effects.commit")
        except BaseException:
            # It erred, perhaps for the very reason that another run of this job has been here in the meantime.
            try:
                done = _find(run, WHOLE, using)
            except DatabaseError:
                done = None
            if done is None:
                raise
            return done.result
        failpoint("effects.committed")
        return result

    @contextmanager
    def once(self, run: Run, name: str) -> Iterator[bool]:
        """See `Effects.once`.

        Raises:
            LeaseLost: another worker has the job; nothing is written.
            ValueError: the name is empty or longer than 100 characters.
        """
        if not name or len(name) > 100:
            raise ValueError(f"delayq.once({name!r}): the name of a step has 1 to 100 characters.")
        using = conf.get().database
        first = _find(run, name, using) is None
        try:
            with transaction.atomic(using=using):
                yield first
                if not first:
                    transaction.set_rollback(True, using=using)
                    return
                run.check_lease()
                _claim_step(run, name, using)
                failpoint("effects.commit")
        except _DoneMeanwhile:
            return
        failpoint("effects.committed")


class _DoneMeanwhile(Exception):
    """Another run has committed the step while this one was at it."""


def _find(run: Run, name: str, using: str) -> Step | None:
    return Step.objects.using(using).filter(job_id=run.id, name=name).first()


def _claim_step(run: Run, name: str, using: str) -> None:
    try:
        Step.objects.using(using).create(job_id=run.id, name=name, fence=run.fence, at=clock.now())
    except IntegrityError:
        raise _DoneMeanwhile from None


def _settle(run: Run, result: Any, using: str) -> None:
    now = clock.now()
    Job.objects.using(using).filter(pk=run.id).update(
        state=State.SUCCEEDED, settled=run.fence, attempts=run.attempt, finished_at=now, result=result, error="",
        fingerprint="", cancel_requested=False,
    )  # fmt: skip


def _kept(result: Any, limit: int) -> Any:
    """The result, if it can be stored; what cannot is logged where the run ends."""
    try:
        codec.check(result, "result")
    except PayloadError:
        return None
    return result if len(codec.dumps(result)) <= limit else None
