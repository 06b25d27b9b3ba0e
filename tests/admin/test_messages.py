"""Messages in the admin: like jobs, without a task."""

from __future__ import annotations

import re

import pytest

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.store.keys import Keys
from tests.admin.conftest import JOBS, QUEUES, WORKERS, beat, lose_redis, page, said
from tests.admin.test_edit import DO, form_of, give


@pytest.fixture
def client(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull"}}}
    return staff()


def fold() -> None:
    MirrorLoop(stores.link, conf.get().queue("mail"), prefix="delayq").drain()


def test_where_a_task_would_stand_it_says_that_it_is_a_message(client):
    job = delayq.push("mail", {"to": "anna"}, delay="1h")
    for address in (page(job), JOBS):
        text = client.get(address).content.decode()
        assert "a message" in text
        assert "django_delayq.message<" not in text
    assert "anna" in client.get(page(job)).content.decode()


def test_what_it_waits_for_is_a_consumer(client):
    beat("default")
    job = delayq.push("mail", 1)
    assert client.get(page(job)).context["why"] == "The message is due, but no consumer has ever pulled from the queue mail."
    delayq.pull("mail", older_than="1h")
    assert client.get(page(job)).context["why"] == "The message is due and is waiting for a consumer to pull it."
    stores.link.execute("HSET", Keys("delayq", "mail")["meta"], "alive", clock.wall_ms() - 3 * 3_600_000)
    assert client.get(page(job)).context["why"] == (
        "The message is due, but no consumer pulls from the queue mail. The last pull was 3h ago."
    )
    assert client.get(page(delayq.push("mail", 1, delay="1h"))).context["why"].startswith("The job is due in ")
    delayq.pause("mail")
    assert "has been paused" in client.get(page(delayq.push("mail", 1))).context["why"]


def test_a_queue_of_messages_lacks_no_worker(client):
    beat("default", "orders", "redis")
    text = client.get(QUEUES).content.decode()
    assert "pulled" in text
    assert "without one" not in text


def test_names_that_are_hidden_are_hidden_at_any_depth_of_a_body(client, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["iban"]}
    job = delayq.push("mail", {"who": "anna", "pay": [{"iban": "DE02"}]})
    text = client.get(page(job)).content.decode()
    assert "anna" in text
    assert "DE02" not in text


def test_a_failed_message_is_requeued_with_another_body(client):
    job = delayq.push("mail", {"to": "anna"})
    delayq.pull("mail")[0].fail("no such address")
    fold()
    assert "no such address" in client.get(page(job)).content.decode()
    done = give(client, job, body='{"to": "berta"}', more=DO)
    assert said(done) == ["The job was requeued with the new arguments."]
    fold()
    assert Job.objects.get(pk=job.id).args == [{"to": "berta"}]
    assert delayq.pull("mail")[0].body == {"to": "berta"}


def test_a_message_keeps_one_body(client):
    job = delayq.push("mail", 1)
    delayq.pull("mail")[0].fail()
    fold()
    Job.objects.update(args=[1, 2])  # so the form has no separate field for it
    digest = client.get(form_of(job)).context["form"].digest
    answer = client.post(form_of(job), {"args": "[1, 2, 3]", "kwargs": "{}", "digest": digest, **DO})
    assert answer.status_code == 400
    assert "one positional argument, its body" in answer.content.decode()


def test_a_held_message_says_by_whom_and_until_when(client):
    job = delayq.push("mail", {"to": "anna"})
    [message] = delayq.pull("mail", lease="1m")
    fold()
    text = client.get(page(job)).content.decode()
    assert '<span class="delayq-state delayq-runs">held</span>' in text
    assert "<dt>consumer</dt>" in text
    assert "<dt>held until</dt>" in text
    told = [moment.text for moment in client.get(page(job)).context["moments"] if moment.what == "attempt 1"]
    assert told[0].startswith("held until ")
    assert client.get(page(job)).context["why"] == ""
    assert "held</span>" in client.get(JOBS).content.decode()
    message.ack()


def consumers(client) -> list[list[str]]:
    text = client.get(WORKERS).content.decode()
    [table] = re.findall(r'<table id="consumers".*?<tbody>(.*?)</tbody>', text, re.S)
    cells = (re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.S) for row in re.findall(r"<tr>(.*?)</tr>", table, re.S))
    return [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row] for row in cells]


def test_who_pulls_a_queue_and_what_each_holds(client):
    assert consumers(client) == [["no consumer has pulled yet", "mail", "", "0", "", ""]]
    assert "never pulled" in client.get(QUEUES).content.decode()
    jobs = [delayq.push("mail", number) for number in range(3)]
    batch = delayq.pull("mail", 2, lease="1m")
    fold()
    holder, last = consumers(client)
    assert holder[0].startswith(f"{batch.holder.worker} 2 messages now {jobs[0].short_id} attempt 1, held until ")
    assert (holder[1], holder[3], last[3]) == ("mail", "2", "2")
    assert holder[4].startswith("20")  # oldest since
    assert re.fullmatch(r"[-\d]+ [:\d]+ ?[-+]\d\d:\d\d", holder[5])
    assert last[0] in ("a consumer is pulling now", "last pull 1s ago")
    assert "never pulled" not in client.get(QUEUES).content.decode()
    stores.link.execute("HSET", Keys("delayq", "mail")["meta"], "alive", clock.wall_ms() - 3_600_000)
    assert consumers(client)[1][0] == "last pull 1h ago"
    assert "not pulled for 1h" in client.get(QUEUES).content.decode()


def test_who_may_not_see_jobs_sees_how_many_messages_are_held_and_not_which(client, staff):
    job = delayq.push("mail", 1)
    delayq.pull("mail", lease="1m")
    assert job.short_id in client.get(WORKERS).content.decode()
    watcher = staff("view_worker")
    assert consumers(watcher)[0][3] == "1"
    assert job.short_id not in watcher.get(WORKERS).content.decode()


def test_leases_of_nobody_who_is_known_and_what_others_have_written_break_no_page(client):
    delayq.push("mail", 1)
    delayq.pull("mail", lease="1m")
    keys = Keys("delayq", "mail")
    stores.link.execute("UNLINK", keys["claims"])
    assert consumers(client)[0][0].startswith("no known consumers 1 message now")
    stores.link.execute("HSET", keys["claims"], "<b>x</b>", "nonsense", "\xff", "")
    stores.link.execute("ZADD", keys["leases"], 5, "stray", "inf", "0" * 22)
    stores.link.execute("HSET", keys["runs"], "0" * 22, "x:y:z:\xff")
    stores.link.execute("HSET", keys["meta"], "alive", "nan")
    assert len(consumers(client)) >= 3


def test_without_redis_there_is_no_word_of_consumers(client, settings):
    lose_redis(settings)
    assert client.get(WORKERS).status_code == 200
