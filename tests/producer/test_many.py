"""`schedule_many`. Without rows a batch is made while the one before it is on its way to Redis."""

from __future__ import annotations

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq.exceptions import KeyTaken, PayloadError, StoreUnavailable
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from tests.depths import queue_depth
from tests.stage import eventually
from tests.tasks_for_tests import close_order, ping

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("delayq_redis")]


def bindings(*numbers, **options):
    return (close_order.using(delay="1h", durability="redis", **options).bind(number) for number in numbers)


def waiting() -> int:
    return queue_depth("orders").scheduled


def test_schedule_many_goes_in_batches_and_in_one_transaction():
    with transaction.atomic():
        jobs = delayq.schedule_many(close_order.using(delay="1h", key=f"k{n}").bind(n) for n in range(450))
        assert waiting() == 0
    assert len({job.id for job in jobs}) == 450
    assert waiting() == 450
    assert Job.objects.count() == 450


def test_every_handle_knows_its_answer_also_that_of_the_last_batch():
    jobs = delayq.schedule_many(bindings(*range(401)))
    assert [job.created for job in jobs] == [True] * 401
    assert waiting() == 401


def test_a_batch_is_sent_before_the_next_one_is_made():
    seen = []

    def watched():
        for number in range(600):
            if number % 200 == 199:
                seen.append(waiting())
            yield from bindings(number)

    delayq.schedule_many(bindings(600))[0].cancel()  # Redis knows the script, and whose queue that is
    delayq.schedule_many(watched())
    assert seen == [0, 200, 400]


@pytest.mark.slow
def test_a_batch_is_made_while_redis_works_on_the_one_before(own_redis, settings):
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    delayq.schedule_many(bindings(0))  # connected, and it is known whose queue that is

    def watched():
        for number in range(400):
            if number == 199:
                server.pause()
            if number == 300:
                server.resume()
            yield from bindings(number)

    assert all(job.created for job in delayq.schedule_many(watched()))


def test_a_job_that_is_refused_keeps_only_its_own_batch_out():
    with pytest.raises(PayloadError):
        delayq.schedule_many([*bindings(*range(400)), *bindings(object())])
    assert waiting() == 400
    assert delayq.schedule(ping).created, "no reply of another call is left to be read"


def test_of_what_follows_a_taken_key_nothing_goes_in(monkeypatch):
    monkeypatch.setattr("django_delayq.producer.put._held", lambda _: {})  # somebody else was faster
    held = [one for number in range(200) for one in bindings(number, key=f"o:{number}", on_conflict="error")]
    delayq.schedule_many(held)
    with pytest.raises(KeyTaken):
        delayq.schedule_many([*held, *bindings(*range(200, 800))])
    assert waiting() == 200


def test_all_queues_of_a_batch_are_served_before_a_refusal_is_told(monkeypatch):
    monkeypatch.setattr("django_delayq.producer.put._held", lambda _: {})
    delayq.schedule_many(bindings(1, key="o:1"))
    with pytest.raises(KeyTaken):
        delayq.schedule_many([*bindings(1, key="o:1", on_conflict="error"), ping.using(delay="1h").bind()])
    assert queue_depth("redis").scheduled == 1


def test_redis_forgets_its_scripts_in_between(delayq_redis):
    def forgetful():
        for number in range(600):
            if number % 200 == 100:
                delayq_redis.link.execute("SCRIPT", "FLUSH")
            yield from bindings(number)

    assert all(job.created for job in delayq.schedule_many(forgetful()))
    assert waiting() == 600


@pytest.mark.slow
def test_redis_goes_away_in_between(own_redis, settings):
    server = own_redis(appendonly="yes", appendfsync="always")
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}

    def cut():
        yield from bindings(*range(450))
        eventually(lambda: waiting() == 400)
        server.kill()
        yield from bindings(*range(450, 800))

    with pytest.raises(StoreUnavailable):
        delayq.schedule_many(cut())
    server.start()
    stores.reset()
    assert waiting() == 400


def test_a_commit_waits_for_its_answers():
    with transaction.atomic():
        jobs = delayq.schedule_many(bindings(*range(450)))
        assert {job.created for job in jobs} == {None}
        assert waiting() == 0
    assert {job.created for job in jobs} == {True}


@pytest.mark.slow
def test_an_error_of_the_caller_is_not_replaced_by_one_of_redis(own_redis, settings):
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    delayq.schedule_many(bindings(0))

    def broken():
        server.pause()
        yield from bindings(*range(250))
        raise LookupError("of the caller")

    with pytest.raises(LookupError):
        delayq.schedule_many(broken())
    server.resume()


def test_what_was_sent_is_waited_for_though_another_call_has_failed_meanwhile(monkeypatch):
    answered = []
    monkeypatch.setattr("django_delayq.producer.breaker.COOLDOWN", 60.0)  # longer than all of this takes on any machine
    monkeypatch.setattr("django_delayq.producer.put._answer", lambda put, reply: answered.append(put))

    def troubled():
        yield from bindings(*range(250))
        with pytest.raises(StoreUnavailable), stores.guarded():
            raise StoreUnavailable("another thread's call")
        yield from bindings(*range(250, 500))

    with pytest.raises(StoreUnavailable, match="next attempt") as error:
        delayq.schedule_many(troubled())
    assert len(answered) == 200, "the first batch has its answer, and the second was not sent"
    assert "is not known" not in str(error.value), "of what was not sent it is"
    assert [delayq.get(job, queue="redis") for job in error.value.jobs] == [None] * 200


def test_a_key_of_the_batch_before_is_known_though_redis_had_forgotten_the_script(delayq_redis):
    delayq_redis.link.execute("SCRIPT", "FLUSH")
    with pytest.raises(KeyTaken):
        delayq.schedule_many(
            [
                *bindings(*range(199)),
                *bindings(1, key="o:1"),
                *bindings(*range(10)),
                *bindings(2, key="o:1", on_conflict="error"),
            ]
        )
    assert waiting() == 200, "none of the batch in which one is refused"


def test_rows_do_not_overtake_what_was_given_before_them(delayq_redis):
    delayq_redis.link.execute("SCRIPT", "FLUSH")  # so that what is sent first is done first only if it is waited for
    early = ping.using(delay="1h", key="p:1", on_conflict="replace", durability="redis")
    late = ping.using(delay="2h", key="p:1", on_conflict="replace", durability="outbox")
    first, last = delayq.schedule_many([early.bind(), late.bind()])
    assert stores.inspector().find("redis", "p:1") == last.id != first.id
