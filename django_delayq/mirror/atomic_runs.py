"""Effects that happen once, and cursors. A row of `Step`, unique per job and name, is committed together with the effects. The threads
of consumers call this code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import DatabaseError, IntegrityError, transaction

from django_delayq import codec, conf
from django_delayq.exceptions import LeaseLost, PayloadError
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.models import Step, database
from django_delayq.producer.outbox.jobs import CURSOR, WHOLE
from django_delayq.worker.current import CurrentJob

TRIES: Final = 3  # to take a cursor; another run may take it in the meantime, but not often
logger = Logger("django_delayq.worker")


def run_atomic(run: CurrentJob, call: Callable[[], Any]) -> Any:
    """See `Effects.run`. The run that commits first wins. A later or stale run finds the step when it begins, or fails to insert it
    when it ends. In both cases everything that this run has written is rolled back.

    The transaction writes only the step beside the effect. It leaves the job's row to the mirror. The mirror has folded the claim of
    this run since the transaction began, and under REPEATABLE READ the transaction could no longer write that row.

    Raises:
        LeaseLost: another worker has the job; nothing is written.
        RuntimeError: a transaction is already open, so this one would not commit the effects.
    """
    if (done := _find(run, WHOLE)) is not None:
        return done.result
    try:
        with database.atomic(durable=True):
            result = call()
            run.check_lease()
            kept = _kept(result, conf.get().queue(run.queue).max_payload)
            Step.objects.create(job_id=run.id, fence=run.nonce, at=database.ago(), result=kept)
            _guard_hooks(run)
            failpoint("effects.commit")
    except BaseException:
        # The run failed, perhaps because another run of this job has committed in the meantime.
        try:
            done = _find(run, WHOLE)
        except DatabaseError:
            done = None
        if done is None:
            raise
        if done.fence == run.nonce:  # this run has committed; a later step failed
            logger.exception("job %s: its changes are committed, but a later step failed", run.id)
        return done.result
    failpoint("effects.committed")
    return result


@contextmanager
def once(run: CurrentJob, name: str) -> Iterator[bool]:
    """See `Effects.once`.

    Raises:
        LeaseLost: another worker has the job, or another run of it has done this step meanwhile; nothing is written.
        ValueError: the name is empty, longer than 100 characters, or reserved.
    """
    if not name or len(name) > 100 or name == CURSOR:
        raise ValueError(f"delayq.once({name!r}): the name must have 1 to 100 characters, and {CURSOR!r} is reserved.")
    first = _find(run, name) is None
    with database.atomic():
        yield first
        if not first:
            transaction.set_rollback(True, using=database.alias())
            return
        run.check_lease()
        try:
            Step.objects.create(job_id=run.id, name=name, fence=run.nonce, at=database.ago())
        except IntegrityError:
            raise LeaseLost(
                f"job {run.id}: another run has completed the step {name!r} in the meantime, so this run's changes in "
                "that step are rolled back. Stop here"
            ) from None
        failpoint("effects.commit")
    failpoint("effects.committed")


def read_cursor(run: CurrentJob, taken_from: str | None) -> tuple[Any, str]:
    """See `Effects.cursor`. The row has the fence of the run that has taken it. A run takes it once. If that is rolled back, the row is
    as the run found it, and the run takes it again. To take it locks the row, so a checkpoint in an open transaction of an earlier run
    is committed or rolled back first.

    Raises:
        LeaseLost: a later run has taken it.
    """
    mine, found = Step.objects.filter(job_id=run.id, name=CURSOR), taken_from or ""
    for _ in range(TRIES):
        row = mine.first()
        if row is not None and row.fence == run.nonce:
            return row.result, found
        found = "" if row is None else row.fence
        if taken_from not in (None, found):
            break
        failpoint("cursor.take")
        if row is None:
            Step.objects.bulk_create([Step(job_id=run.id, name=CURSOR, fence=run.nonce, at=database.ago())], ignore_conflicts=True)
        else:
            mine.filter(fence=found).update(fence=run.nonce)
        failpoint("cursor.taken")
    raise _taken(run)


def write_cursor(run: CurrentJob, cursor: Any) -> None:
    """See `Effects.checkpoint`.

    Raises:
        LeaseLost: a later run has taken the cursor; nothing is written.
        PayloadError: the cursor is not JSON, or it is too large.
    """
    codec.check(cursor, "cursor")
    size, limit = len(codec.dumps(cursor)), conf.get().queue(run.queue).max_payload
    if size > limit:
        raise PayloadError(f"the cursor is {size:,} bytes of JSON, and the limit is {limit:,} (MAX_PAYLOAD); pass an id")
    failpoint("cursor.write")
    if not Step.objects.filter(job_id=run.id, name=CURSOR, fence=run.nonce).update(result=cursor, at=database.ago()):
        raise _taken(run)
    failpoint("cursor.written")


def _taken(run: CurrentJob) -> LeaseLost:
    return LeaseLost(f"job {run.id}: another run has taken the cursor of the job, so this run cannot use it. Stop here")


def _find(run: CurrentJob, name: str) -> Step | None:
    return Step.objects.filter(job_id=run.id, name=name).first()


def _guard_hooks(run: CurrentJob) -> None:
    """After the commit, a hook that raises must not stop the other hooks, and its error must be logged."""
    connection: Any = database.connection()  # its hooks have a third part that the stubs do not know
    connection.run_on_commit = [(sids, _guarded(hook, run), robust) for sids, hook, robust in connection.run_on_commit]


def _guarded(hook: Callable[[], Any], run: CurrentJob) -> Callable[[], None]:
    def call() -> None:
        try:
            hook()
        except BaseException:  # a task cannot end the worker, not even with SystemExit
            logger.exception("job %s (%s) has committed, but an on_commit hook failed", run.id, run.task)

    call.__wrapped__ = hook  # type: ignore[attr-defined]  # the test kit reads the hook from here
    return call


def _kept(result: Any, limit: int) -> Any:
    """The result, if it can be stored. The end of the run logs a result that cannot."""
    try:
        codec.check(result, "result")
    except PayloadError:
        return None
    return result if len(codec.dumps(result)) <= limit else None
