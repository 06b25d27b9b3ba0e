"""The mirror's tokens tell a database from its copy, and nothing that happens to one database looks like a copy."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

import django_delayq as delayq
from django_delayq import clock, under_test
from django_delayq.mirror import mirror_loop
from django_delayq.mirror.checkpoint import note_refused
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Checkpoint, Site
from django_delayq.producer import queues
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Cooldown
from django_delayq.store.scripts import site
from django_delayq.store.scripts.events import FIRST, EventLog
from django_delayq.store.scripts.recovery import EpochStore
from django_delayq.store.scripts.site import SiteRefused
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def compared(orders, monkeypatch):
    """The queue "orders", whose checkpoint is compared as outside of tests."""
    site.of("delayq")  # the derived id stays
    monkeypatch.setattr(under_test, "derives_site", lambda: False)
    Site.objects.get_or_create(number=1, defaults={"site": site.of("delayq")})
    yield orders
    site.forget()


def event() -> None:
    delayq.schedule(close_order, 1, delay="1h")


def tokens() -> str:
    return Checkpoint.objects.get(queue="orders").mirror_tokens or ""


def in_redis(orders) -> str:
    return EpochStore(orders.store).look(FIRST).trimmed.token


class Copied:
    """The checkpoint as another database has it; `here` puts that one in the place of ours."""

    def __init__(self) -> None:
        self.fields = (
            Checkpoint.objects.filter(queue="orders").values("last_event", "generation", "restored", "mirror_tokens", "address").get()
        )

    def here(self) -> Copied:
        ours = Copied()
        Checkpoint.objects.filter(queue="orders").update(**self.fields)
        return ours


def test_each_turn_that_folds_something_makes_a_token_that_trim_writes(compared):
    for number in ("1", "2", "3"):
        event()
        compared.fold()
        assert in_redis(compared) == tokens().split()[-1]
        assert in_redis(compared).partition("-")[0] == number
    before = tokens()
    compared.fold()
    assert tokens() == before


def test_after_a_crash_between_commit_and_trim_the_token_is_kept_until_redis_has_it(compared, monkeypatch):
    event()
    compared.fold()
    first = in_redis(compared)
    with monkeypatch.context() as patched:
        patched.setattr(EventLog, "trim", lambda *_, **__: None)
        for _ in range(3):
            event()
            compared.mirror.poll()
    kept = tokens()
    assert kept.split()[0] == first == in_redis(compared)
    compared.mirror.poll()  # nothing to fold: it only trims
    assert in_redis(compared) == kept.split()[1]
    event()
    compared.fold()
    assert in_redis(compared).partition("-")[0] == "3"


def test_a_mirror_of_another_database_is_refused_on_either_side(compared):
    event()
    compared.fold()
    copy = Copied()
    event()
    compared.fold()
    ours = copy.here()
    event()
    with pytest.raises(SiteRefused, match="another database with the same id"):
        compared.fold()
    ours.here()
    compared.fold()
    assert in_redis(compared) == tokens().split()[-1]


def test_of_two_databases_whose_turns_cross_the_one_that_trims_first_goes_on(compared, monkeypatch):
    event()
    compared.fold()
    copy = Copied()
    event()
    with monkeypatch.context() as patched:
        patched.setattr(EventLog, "trim", lambda *_, **__: None)
        compared.mirror.poll()
    ours, late = copy.here(), compared.mirror
    other = MirrorLoop(stores.link, compared.config, prefix="delayq")
    other.drain()  # the copy trims at the same event
    theirs = ours.here()
    event()
    with pytest.raises(SiteRefused):
        late.poll()
    theirs.here()
    other.drain()
    assert in_redis(compared) == tokens().split()[-1]


def test_an_idle_mirror_makes_a_new_token_so_an_older_copy_is_refused(compared, monkeypatch):
    event()
    compared.fold()
    copy = Copied()
    now = clock.monotonic()
    for seconds in (0, mirror_loop.TOKEN_LASTS + 1):
        monkeypatch.setattr(clock, "monotonic", lambda: now + seconds)  # noqa: B023  # called in this pass
        compared.mirror.poll()
    assert in_redis(compared) == tokens().split()[-1] != copy.fields["mirror_tokens"].split()[-1]
    copy.here()
    with pytest.raises(SiteRefused):
        RestoreLoop(stores.link, compared.config, prefix="delayq").look()


def test_of_several_idle_mirrors_one_makes_the_token(compared, monkeypatch):
    event()
    compared.fold()
    mirrors = [compared.mirror, *(MirrorLoop(stores.link, compared.config, prefix="delayq") for _ in range(9))]
    now = clock.monotonic()
    before = int(in_redis(compared).partition("-")[0])
    for second in range(301):
        monkeypatch.setattr(clock, "monotonic", lambda: now + second)  # noqa: B023  # called in this pass
        mirrors[second % 10].poll()
    made = int(in_redis(compared).partition("-")[0]) - before
    assert 5 <= made <= 30


CHANGES = {
    "schedule": lambda job: delayq.schedule(close_order, 2),
    "schedule, redis durability": lambda job: delayq.schedule(close_order, 2, durability="redis"),
    "schedule, held key, latest": lambda job: delayq.schedule(close_order, 2, key="k", delay="2h", on_conflict="latest"),
    "cancel": lambda job: delayq.cancel(job),
    "cancel by key": lambda job: delayq.cancel(key="k", queue="orders"),
    "reschedule": lambda job: delayq.reschedule(job, delay="2h"),
    "run now": lambda job: delayq.run_now(job),
    "requeue": lambda job: delayq.requeue(job),
    "pause": lambda job: delayq.pause("orders"),
    "resume": lambda job: delayq.resume("orders"),
    "purge": lambda job: list(queues.purge("orders")),
    "lock": lambda job: delayq.lock("name", queue="orders").__enter__(),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_process_of_a_copy_is_refused_at_its_first_change_of_any_kind(compared, change):
    job = delayq.schedule(close_order, 1, delay="1h", key="k")
    compared.fold()
    copy = Copied()
    event()
    compared.fold()
    copy.here()
    site.forget()  # a new process
    stores.forget()
    before = contents(compared)
    with ExitStack() as refused:
        if change not in ("schedule", "schedule, held key, latest"):  # these rows wait in the copy
            refused.enter_context(pytest.raises(delayq.StoreUnavailable, match="another database with the same id"))
        CHANGES[change](job)
    assert contents(compared) == before


def test_a_process_that_was_refused_compares_again_at_its_next_change(compared):
    event()
    compared.fold()
    copy = Copied()
    event()
    compared.fold()
    ours = copy.here()
    with pytest.raises(SiteRefused):
        RestoreLoop(stores.link, compared.config, prefix="delayq").look()
    with pytest.raises(delayq.StoreUnavailable, match="another database with the same id"):
        delayq.pause("orders")
    ours.here()
    assert delayq.pause("orders")


def test_a_lock_of_the_queue_on_another_server_does_not_count_as_the_comparison_of_the_queue(compared):
    event()
    compared.fold()
    copy = Copied()
    event()
    compared.fold()
    copy.here()
    site.forget()
    elsewhere = SimpleNamespace(home="elsewhere", execute=lambda *_: [None, None, None], cooldown=Cooldown())
    site.admit(elsewhere, compared.store.keys)
    with pytest.raises(SiteRefused):
        site.admit(compared.store.link, compared.store.keys)


def contents(orders) -> list[object]:
    """What Redis has of the queue, except what reads note."""
    link, keys = orders.store.link, orders.store.keys
    meta = link.execute("HMGET", keys["meta"], "paused", "mirror_token", "asked")
    return [
        meta,
        link.execute("XLEN", keys["events"]),
        link.execute("ZRANGE", keys["normal"], 0, -1, "WITHSCORES"),
        link.execute("HLEN", keys["locks"]),
    ]


def test_several_mirrors_of_one_database_take_turns(compared):
    second = MirrorLoop(stores.link, compared.config, prefix="delayq")
    for mirror in (compared.mirror, second, second, compared.mirror):
        event()
        mirror.drain()
    assert in_redis(compared).partition("-")[0] == "4"


def test_a_database_that_takes_over_with_all_commits_goes_on(compared):
    event()
    compared.fold()
    replica = Copied()
    replica.here()
    event()
    compared.fold()
    assert in_redis(compared) == tokens().split()[-1]


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_a_redis_that_was_rolled_back_by_some_turns_is_no_other_database(compared, turns):
    """Its events were in the stream already, so Redis lacks nothing that the database has."""
    event()
    compared.fold()
    link, meta = compared.store.link, compared.store.keys["meta"]
    before = link.execute("HMGET", meta, "mirrored", "mirror_token")
    for _ in range(turns):
        event()
        compared.fold()
    event()
    compared.mirror.log.trim = lambda *_, **__: None
    compared.mirror.poll()  # what the database has seen last is in the stream
    del compared.mirror.log.trim
    link.execute("HSET", meta, "mirrored", before[0], "mirror_token", before[1])
    event()
    compared.fold()
    assert in_redis(compared) == tokens().split()[-1]


def test_a_queue_without_a_token_is_no_other_database(compared):
    event()
    compared.fold()
    last = tokens()
    compared.store.link.execute("HDEL", compared.store.keys["meta"], "mirror_token")
    event()
    compared.fold()
    assert (tokens(), in_redis(compared)) == (last, last.split()[-1])


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_copy_that_was_refused_stays_refused_when_redis_is_rolled_back(compared, lost):
    """By then Redis has a token that the copy wrote, or an older one, but the rows of the copy are old."""
    link, meta = compared.store.link, compared.store.keys["meta"]
    states = []
    for _ in range(3):
        event()
        compared.fold()
        states.append(link.execute("HMGET", meta, "mirrored", "mirror_token"))
    copy = Copied()
    event()
    compared.fold()
    copy.here()
    restore = RestoreLoop(stores.link, compared.config, prefix="delayq")
    with pytest.raises(SiteRefused):
        restore.poll()
    mirrored, token = states[-lost]
    link.execute("HSET", meta, "mirrored", mirrored, "mirror_token", token)
    with pytest.raises(SiteRefused):
        restore.poll()


def test_a_refusal_by_an_old_read_of_the_checkpoint_is_not_noted(compared):
    event()
    compared.fold()
    copy = Copied()
    event()
    compared.fold()
    ours = copy.here()
    with pytest.raises(SiteRefused) as refusal:
        RestoreLoop(stores.link, compared.config, prefix="delayq").look()
    ours.here()
    before = tokens()
    note_refused(refusal.value)
    assert tokens() == before
