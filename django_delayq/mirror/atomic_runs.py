"""Effects that happen once: a row of `Step`, unique per job and name, is committed together with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, IntegrityError, transaction

from django_delayq import codec, conf
from django_delayq.exceptions import LeaseLost, PayloadError
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.models import Step, database, database_clock
from django_delayq.producer.outbox.committed_runs import WHOLE
from django_delayq.worker.current import CurrentJob

logger = Logger("django_delayq.worker")


class DatabaseEffects:
    """Whoever commits first has done it. A run that comes second, late or stale, finds the step when it begins, or fails to insert
    it when it ends; then all that it has written is rolled back with it.

    The step is all that is written beside the effect. The job's row is left to the mirror: it has taken in the claim of this very run
    since the transaction began, and under REPEATABLE READ no transaction may then write that row.
    """

    def run(self, run: CurrentJob, call: Callable[[], Any]) -> Any:
        """See `Effects.run`.

        Raises:
            LeaseLost: another worker has the job; nothing is written.
            RuntimeError: there is a transaction open already, so that the effects would not be committed by this one.
        """
        if (done := _find(run, WHOLE)) is not None:
            return done.result
        try:
            with database.atomic(durable=True):
                result = call()
                run.check_lease()
                kept = _kept(result, conf.get().queue(run.queue).max_payload)
                Step.objects.create(job_id=run.id, fence=run.nonce, at=database_clock.ago(), result=kept)
                _guard_hooks(run)
                failpoint("effects.commit")
        except BaseException:
            # It erred, perhaps for the very reason that another run of this job has been here in the meantime.
            try:
                done = _find(run, WHOLE)
            except DatabaseError:
                done = None
            if done is None:
                raise
            if done.fence == run.nonce:  # this run's own commit: what failed came behind it
                logger.exception("job %s: its changes are committed, but a later step failed", run.id)
            return done.result
        failpoint("effects.committed")
        return result

    @contextmanager
    def once(self, run: CurrentJob, name: str) -> Iterator[bool]:
        """See `Effects.once`.

        Raises:
            LeaseLost: another worker has the job, or another run of it has done this step meanwhile; nothing is written.
            ValueError: the name is empty or longer than 100 characters.
        """
        if not name or len(name) > 100:
            raise ValueError(f"delayq.once({name!r}): the name of a step has 1 to 100 characters.")
        first = _find(run, name) is None
        with database.atomic():
            yield first
            if not first:
                transaction.set_rollback(True, using=database.alias())
                return
            run.check_lease()
            _claim_step(run, name)
            failpoint("effects.commit")
        failpoint("effects.committed")


def _find(run: CurrentJob, name: str) -> Step | None:
    return Step.objects.filter(job_id=run.id, name=name).first()


def _claim_step(run: CurrentJob, name: str) -> None:
    try:
        Step.objects.create(job_id=run.id, name=name, fence=run.nonce, at=database_clock.ago())
    except IntegrityError:
        raise LeaseLost(
            f"job {run.id}: another run has done the step {name!r} at the same time, so the changes of this run in that step are "
            f"rolled back. Stop here"
        ) from None


def _guard_hooks(run: CurrentJob) -> None:
    """Once this transaction has committed, a hook that raises must not keep the others from running, nor go unseen."""
    connection: Any = database.connection()  # its hooks bear a third part, which the stubs do not know
    connection.run_on_commit = [(sids, _guarded(hook, run), robust) for sids, hook, robust in connection.run_on_commit]


def _guarded(hook: Callable[[], Any], run: CurrentJob) -> Callable[[], None]:
    def call() -> None:
        try:
            hook()
        except BaseException:  # SystemExit too: a task cannot end the worker
            logger.exception("job %s (%s): it has committed; an on_commit hook failed", run.id, run.task)

    call.__wrapped__ = hook  # type: ignore[attr-defined]  # whose hook it is, the test kit asks
    return call


def _kept(result: Any, limit: int) -> Any:
    """The result, if it can be stored; what cannot is logged where the run ends."""
    try:
        codec.check(result, "result")
    except PayloadError:
        return None
    return result if len(codec.dumps(result)) <= limit else None
