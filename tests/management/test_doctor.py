"""`delayq doctor`: each finding with its remedy, and the exit code."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError

import django_delayq as delayq
from django_delayq import clock, under_test
from django_delayq.checks import check_rights
from django_delayq.models import CommitRequest, Job, Site, database
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, registry
from django_delayq.store.scripts import decode, site
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests import servers
from tests.conftest import Answer
from tests.management.conftest import NOWHERE, beat, lose_redis, without_database
from tests.tasks_for_tests import close_order
from tests.topologies import ClusterNode

QUEUES = ("default", "orders", "redis")


@pytest.fixture
def healthy(orders, own_redis, settings) -> None:
    """A server that persists its data, and a worker on every queue."""
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": own_redis(appendonly="yes").url}
    beat(*QUEUES)


def findings(answer, code: str) -> list[dict[str, str]]:
    return [finding for finding in answer.json["findings"] if finding["code"] == code]


def only(run, code: str) -> dict[str, str]:
    """Returns the only finding with that code. It must have a remedy."""
    [found] = findings(run("doctor", "--json"), code)
    assert found["message"]
    assert found["hint"]
    return found


def test_a_healthy_system_has_no_findings(run, healthy):
    assert run("doctor") == Answer(0, "No problems found.\n")
    assert run("doctor", "--json").json == {"ok": True, "findings": []}


def test_findings_stand_above_their_remedy(run, healthy, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {name: {} for name in (*QUEUES, "mails")}}
    answer = run("doctor")
    assert answer.code == 0
    assert answer.lines == [
        "WARNING  D004 No worker serves the queue 'mails'.",
        "         To start one, run manage.py delayq_worker --queues mails",
    ]


def test_d001_migrations_are_not_applied(run, healthy, settings, monkeypatch, tmp_path):
    without_database(settings, monkeypatch, str(tmp_path / "empty.sqlite3"))
    answer = run("doctor", "--json")
    assert (answer.code, answer.json["ok"]) == (1, False)
    assert only(run, "D001")["hint"] == "Run manage.py migrate."
    assert not findings(answer, "D003"), "that the tables are missing follows, and is not told again"


def test_forgotten_migrations_are_named_by_commands_checks_and_schedule(run, healthy, settings, monkeypatch, tmp_path):
    without_database(settings, monkeypatch, str(tmp_path / "empty.sqlite3"))
    answer = run("list")
    assert answer.code == 1
    assert answer.error.endswith("no such table: delayq_job; run manage.py migrate")
    assert "D001" in {(message.id or "")[-4:] for message in check_rights(databases=[settings.DELAYQ["DATABASE"]])}
    with pytest.raises(OperationalError) as told:
        delayq.schedule(close_order, 1)
    assert told.value.__notes__ == ["The database does not have all tables of delayq. Run manage.py migrate."]


@pytest.mark.parametrize(("name", "code"), [("empty.sqlite3", "D001"), ("missing/db.sqlite3", "D003")])
def test_a_database_that_does_not_tell_the_site_is_no_fault_of_redis(run, healthy, settings, monkeypatch, tmp_path, name, code):
    without_database(settings, monkeypatch, str(tmp_path / name))
    forget_site(monkeypatch)
    assert [one["code"] for one in run("doctor", "--json").json["findings"] if one["level"] == "error"] == [code]


def test_d003_the_table_of_the_site_is_empty(run, healthy, monkeypatch):
    Site.objects.all().delete()
    forget_site(monkeypatch)
    assert "To create an id, run manage.py delayq adopt" in only(run, "D003")["message"]
    assert not findings(run("doctor", "--json"), "D007")


def forget_site(monkeypatch) -> None:
    """The id of the site comes from the database, as outside of tests."""
    monkeypatch.setattr(under_test, "derives_site", lambda: False)
    site.forget()


def test_d002_the_outbox_is_not_emptied(run, healthy, orders, monkeypatch):
    orders.unpublished(monkeypatch, age=600)
    assert "The oldest has waited for 10m" in only(run, "D002")["message"]
    assert run("doctor").code == 0, "a warning is no failure"


def test_d035_parked_jobs_are_named_by_task_and_why(run, healthy, orders):
    for code, job in zip(("parked-task", "parked-task", "parked-arguments"), orders.scheduled(3), strict=True):
        Job.objects.filter(pk=job.id).update(fingerprint=code)
    unknown, other = sorted((one["message"] for one in findings(run("doctor", "--json"), "D035")), reverse=True)
    assert unknown == "Parked jobs of 'orders': 2. The workers have no task named 'tests.tasks_for_tests.close_order'."
    assert other.endswith("The task 'tests.tasks_for_tests.close_order' accepts different arguments in the workers.")
    assert run("doctor").code == 0, "a warning is no failure"


def test_a_young_row_in_the_outbox_is_no_finding(run, healthy, orders, monkeypatch):
    orders.unpublished(monkeypatch, age=30)
    stores.link.execute("HSET", orders.store.keys["meta"], "format", 1)  # otherwise the doctor reports that
    assert run("doctor").out == "No problems found.\n"


def test_d003_the_database_cannot_be_asked(run, healthy, settings, monkeypatch):
    without_database(settings, monkeypatch)
    answer = run("doctor")
    assert answer.code == 1
    assert answer.lines[0].startswith("ERROR    D003 The database ")
    assert only(run, "D003")["level"] == "error"


def test_a_server_of_another_kind_is_told_alone_and_rows_are_not_compared_with_it(run, healthy, settings, request):
    node = ClusterNode()
    request.addfinalizer(node.stop)
    node.start()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"redis://127.0.0.1:{node.port}/1", "SIGNING": True}
    stores.reset()
    for words in (("doctor", "--json"), ("doctor", "--deep", "--json")):
        answer = run(*words)
        assert answer.code == 1
        assert [finding["code"] for finding in answer.json["findings"] if finding["level"] == "error"] == ["E013"]


def test_d004_no_worker_serves_a_queue(run, orders):
    beat("orders")
    found = findings(run("doctor", "--json"), "D004")
    assert [finding["message"] for finding in found] == [
        "No worker serves the queue 'default'.",
        "No worker serves the queue 'redis'.",
    ]


def test_d004_nobody_keeps_the_records_of_a_queue_of_messages(run, orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {}, "mail": {"CONSUMER": "pull"}}}
    beat("orders", records=["orders"])
    assert only(run, "D004")["message"] == "No worker has the role mirror for the queue 'mail', from which consumers pull."
    beat("orders", records=["orders", "mail"])
    assert findings(run("doctor", "--json"), "D004") == []


def test_d004_workers_run_jobs_of_a_queue_and_nobody_keeps_its_records(run, orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {}}}
    beat("orders", records=[])
    assert only(run, "D004")["message"].startswith("No worker has the role mirror for the queue 'orders'")
    beat("orders", records=["orders"])
    assert findings(run("doctor", "--json"), "D004") == []


def test_d038_changes_at_commits_of_a_queue_that_is_not_listed(run, orders, settings):
    [job] = orders.scheduled()
    for about in ({"job_id": job.id}, {"queue": "orders", "key": "k"}, {"queue": "default", "key": "k"}):
        CommitRequest.objects.create(verb="cancel", at=clock.from_ms(0), **about)
    assert findings(run("doctor", "--json"), "D038") == []
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    assert only(run, "D038")["message"] == (
        "Committed changes of jobs in the queue 'orders' that no process carries out: 2. DELAYQ['QUEUES'] does not list this queue."
    )


def test_d002_does_not_speak_of_rows_that_redis_has(run, orders):
    job = orders.scheduled()[0]
    Job.objects.filter(pk=job.id).update(published=None, created_at=clock.from_ms(clock.wall_ms() - 600_000))
    assert findings(run("doctor", "--json"), "D002") == []


def test_a_worker_that_fell_silent_serves_nothing(run, healthy, monkeypatch):
    later = clock.wall_ms() + 31_000  # by the clock of Redis
    monkeypatch.setattr(decode, "time_ms", lambda _: later)
    assert len(findings(run("doctor", "--json"), "D004")) == 3


def test_d005_a_queue_is_paused(run, healthy):
    run("pause", "orders", "--reason", "stocktaking")
    found = only(run, "D005")
    assert ": stocktaking." in found["message"]
    assert found["hint"] == "To resume it, run manage.py delayq resume orders"
    run("resume", "orders")
    assert run("doctor").out == "No problems found.\n"


def test_d006_the_mirror_is_behind(run, orders):
    orders.store.pause(now_ms=clock.wall_ms() - 600_000)
    assert re.search(r"The mirror of 'orders' is 10m(\d+s)? behind\. Events to write: 1\.", only(run, "D006")["message"])


def test_d007_redis_is_down(run, orders, settings):
    lose_redis(settings)
    answer = run("doctor", "--json")
    assert (answer.code, answer.json["ok"]) == (1, False)
    assert NOWHERE.removeprefix("unix://") in only(run, "D007")["message"]


def test_d029_the_clocks_of_database_and_redis_differ(run, healthy, monkeypatch):
    monkeypatch.setattr(database, "now", lambda: clock.now() + timedelta(days=31))
    finding = only(run, "D029")
    assert finding["level"] == "error"
    assert "Nothing is deleted while they differ by five minutes or more" in finding["message"]


def test_both_down_are_two_findings(run, orders, settings, monkeypatch):
    lose_redis(settings)
    without_database(settings, monkeypatch)
    answer = run("doctor", "--json")
    assert [finding["code"] for finding in answer.json["findings"]] == ["D003", "D007"]


def test_a_server_that_may_evict_jobs_is_an_error(run, orders, own_redis, settings):
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": own_redis(maxmemory_policy="allkeys-lru").url}
    answer = run("doctor", "--json")
    assert answer.code == 1
    assert findings(answer, "E010")


def test_a_server_that_keeps_nothing_is_a_warning(run, settings, orders):
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": settings.REDIS_URL}  # as somebody who may look at the configuration
    beat(*QUEUES)
    answer = run("doctor", "--json")
    assert (answer.code, answer.json["ok"]) == (0, True)
    assert [finding["code"] for finding in answer.json["findings"]] == ["W010"]


def test_a_setting_that_works_but_is_unwise_is_a_warning(run, healthy, settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": settings.DELAYQ["REDIS"]}}
    answer = run("doctor", "--json")
    assert answer.code == 0
    assert len(findings(answer, "W002")) == 1


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ({"LAESE": 30}, "E001"),
        ({"LEASE": "soon"}, "E002"),
        ({"REDIS": "nowhere"}, "E003"),
        ({"DATABASE": "nowhere"}, "E006"),
    ],
)
def test_settings_that_cannot_work_are_findings_and_the_only_ones(run, orders, settings, setting, code):
    settings.DELAYQ = {**settings.DELAYQ, **setting}
    answer = run("doctor", "--json")
    assert answer.code == 1
    assert {finding["code"] for finding in answer.json["findings"]} == {code}


def test_every_mistake_in_the_settings_is_told(run, orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "LAESE": 30, "AUDIT": "none"}
    assert [finding["code"] for finding in run("doctor", "--json").json["findings"]] == ["E001", "E002"]


# the way to Redis


def by_network(settings, server, *, user: bool = True) -> None:
    url = f"{server.tcp_url}/0"
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": servers.as_package(url) if user else url, "SIGNING": True}
    stores.reset()


def test_d014_a_user_that_may_flush_is_told(run, orders, own_redis, settings):
    by_network(settings, own_redis(port=True), user=False)
    found = only(run, "D014")
    assert "has permission for FLUSHALL and CONFIG SET" in found["message"]
    assert "delayq settings REDIS" in found["hint"]
    assert findings(run("doctor", "--json"), "W015"), "and it has no password"


def test_a_user_with_the_documented_rights_is_no_finding(run, orders, own_redis, settings):
    by_network(settings, own_redis(port=True))
    codes = {finding["code"] for finding in run("doctor", "--json").json["findings"]}
    assert not codes & {"D014", "W014", "W015", "W016", "W017"}


TARGETS = {
    "shipping": {"KEY": "shipping-out", "KIND": "stream", "MAXLEN": 100},
    "invoices": {"KEY": "invoices-out", "KIND": "list", "MAXLEN": None},
}


def test_d050_a_user_that_may_not_write_to_targets_is_told_the_line_that_allows_it(run, orders, own_redis, settings):
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": servers.as_package(server.url), "TARGETS": TARGETS}
    assert not findings(run("doctor", "--json"), "D050")
    server.call("ACL", "SETUSER", servers.USER, "resetkeys", "~delayq:*", "-rpush", "-ltrim")
    found = only(run, "D050")
    assert "shipping, invoices" in found["message"]
    assert found["hint"] == "To grant the rights, run redis-cli ACL SETUSER <user> '~shipping-out' '~invoices-out' +rpush +ltrim"
    server.call("ACL", "SETUSER", servers.USER, *servers.target_rules())
    assert not findings(run("doctor", "--json"), "D050")


def test_d051_something_else_stands_at_the_key_of_a_target_and_the_look_changes_nothing(run, orders, own_redis, settings):
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url, "TARGETS": TARGETS}
    server.call("SET", "shipping-out", "theirs")
    server.call("RPUSH", "invoices-out", "1", "2")
    assert "The key 'shipping-out' of the target 'shipping' is not a stream" in only(run, "D051")["message"]
    assert (server.call("LLEN", "invoices-out"), server.call("STRLEN", "shipping-out")) == (":2", ":6")


def test_the_doctor_speaks_of_jobs_that_are_not_signed(run, orders, own_redis, settings):
    by_network(settings, own_redis(port=True))
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": False}
    assert "not signed" in only(run, "W017")["message"]


def test_the_doctor_speaks_of_an_embedded_directory_that_is_refused(run, orders, settings, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").symlink_to("elsewhere")
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": {"EMBEDDED": str(tmp_path / "data")}}
    stores.reset()
    assert "data is a symbolic link" in only(run, "W018")["message"]
    assert "symbolic link" in only(run, "D007")["message"]


def test_the_doctor_speaks_of_workers_that_answer_probes_on_all_addresses(run, healthy):
    registry = WorkerRegistry(stores.link, prefix="delayq")
    registry.beat("host:1:w", {"queues": list(QUEUES), "health": "*:8081"})
    assert "on all addresses" in only(run, "W019")["message"]
    registry.beat("host:1:w", {"queues": list(QUEUES), "health": "127.0.0.1:8081"})
    assert run("doctor").out == "No problems found.\n"


def test_each_finding_begins_with_the_code_by_which_it_is_looked_up_and_silenced(run, settings):
    settings.DELAYQ = {**settings.DELAYQ, "LAESE": 3}
    assert "ERROR    E001 " in run("doctor").out


def test_d005_a_task_is_paused(run, healthy):
    run("pause", "--task", "tests.tasks_for_tests.close_order", "--reason", "strike")
    found = only(run, "D005")
    assert "The task 'tests.tasks_for_tests.close_order' is paused since" in found["message"]
    assert found["hint"] == "To resume it, run manage.py delayq resume --task tests.tasks_for_tests.close_order"
    run("resume", "--task", "tests.tasks_for_tests.close_order")
    assert run("doctor").out == "No problems found.\n"


@pytest.fixture
def deploy(monkeypatch):
    """The code of this process: tasks by name, with their options."""

    def change(**tasks: dict[str, Any]) -> None:
        made = [Task(lambda order, amount=0: None, name=f"shop.{name}", queue="orders", **options) for name, options in tasks.items()]
        monkeypatch.setattr(registry, "_tasks", {})
        for one in made:
            for name in (one.name, *one.aliases):
                registry._tasks[name] = one

    return change


def test_jobs_that_the_new_code_does_not_understand_are_counted_by_task_and_version(run, healthy, orders, deploy, settings):
    deploy(pay={"version": 2}, gone={}, moved={}, fits={})
    for name, count in (("pay", 3), ("gone", 2), ("moved", 1), ("fits", 1)):
        for number in range(count):
            delayq.schedule(registry.get(f"shop.{name}"), number, delay="1h")
    deploy(pay={"version": 1}, ship={"aliases": ["shop.moved"]}, fits={"version": 2, "upgrade": {1: lambda order: {"order": order}}})
    assert run("doctor").code == 0
    answer = run("doctor", "--deploy", "--json")
    assert answer.code == 1
    said = "that this code does not understand"
    assert [finding["message"] for finding in findings(answer, "D040")] == [
        f"Waiting jobs of 'shop.gone', version 1, {said}: 2, because no task has this name.",
        f"Waiting jobs of 'shop.pay', version 2, {said}: 3, because the task has another version, and no upgrade from this one.",
    ]
    misspelt = {"version": 3, "upgrade": {2: lambda order: {"ordr": order}}}
    deploy(pay=misspelt, ship={"aliases": ["shop.moved", "shop.gone"]}, fits={})
    [found] = findings(run("doctor", "--deploy", "--json"), "D040")
    assert found["message"] == f"Waiting jobs of 'shop.pay', version 2, {said}: 3, because the function takes other arguments."


def test_so_are_jobs_that_are_only_in_redis_and_have_no_row(run, healthy, orders, deploy, settings):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": "failures"}
    deploy(pay={"version": 2})
    for number in range(3):
        delayq.schedule(registry.get("shop.pay"), number, delay="1h", durability="redis")
    orders.fold()
    assert not Job.objects.exists()
    assert run("doctor", "--deploy").code == 0
    deploy(pay={})
    [found] = findings(run("doctor", "--deploy", "--json"), "D040")
    assert found["message"].startswith("Waiting jobs of 'shop.pay', version 2, that this code does not understand: 3")
