"""`delayq list`."""

from __future__ import annotations

import csv
import io

import pytest

import django_delayq as delayq
from django_delayq import ids
from django_delayq.models import Job
from tests.management.conftest import lose_redis, without_database
from tests.tasks_for_tests import close_order, ping


def listed(answer) -> list[str]:
    return [job["id"] for job in answer.json]


def test_list_shows_rows_newest_first(run, orders):
    first, second = orders.scheduled(2)
    answer = run("list")
    assert answer.code == 0
    assert answer.lines[0].split("  ")[0] == "id"
    assert [line.split()[0] for line in answer.lines[1:]] == [ids.short(second.id), ids.short(first.id)]
    assert answer.lines[1].split()[1:5] == ["scheduled", "orders", close_order.name, "-"]


def test_list_as_json_gives_whole_rows(run, orders):
    [job] = orders.scheduled(key="o:7")
    [found] = run("list", "--json").json
    wanted = {
        "id": ids.short(job.id),
        "uuid": str(job.id),
        "queue": "orders",
        "task": close_order.name,
        "key": "o:7",
        "state": "scheduled",
        "derived": "scheduled",
        "args": [0],
        "kwargs": {},
        "attempts": 0,
        "finished_at": None,
        "run_at": Job.objects.get().run_at.isoformat(),
    }
    assert {name: found[name] for name in wanted} == wanted


def test_list_masks_sensitive_arguments(run, orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    delayq.schedule(close_order, 7, note="4111 1111")
    answer = run("list", "--json")
    assert answer.json[0]["kwargs"] == {"note": "***"}
    assert "4111 1111" not in answer.out


def test_list_by_queue_task_and_state(run, orders):
    job = orders.ended("fail")
    orders.scheduled(2)
    delayq.schedule(ping, durability="outbox")
    assert len(listed(run("list", "--queue", "orders", "--json"))) == 3
    assert len(listed(run("list", "--task", ping.name, "--json"))) == 1
    assert listed(run("list", "--state", "failed", "--json")) == [ids.short(job.id)]
    assert listed(run("list", "--queue", "redis", "--state", "failed", "--json")) == []


@pytest.mark.parametrize("state", ["due", "retrying", "unpublished"])
def test_list_by_a_derived_state(run, orders, monkeypatch, state):
    retried = orders.claim_one()
    orders.settle(retried, "retry", delay=3_600_000)
    orders.fold()
    wanted = {"retrying": retried.id}
    wanted["unpublished"] = orders.unpublished(monkeypatch).short_id
    wanted["due"] = orders.scheduled(delay=0)[0].short_id
    orders.scheduled()
    answer = run("list", "--state", state, "--json")
    assert listed(answer) == [wanted[state]]
    assert answer.json[0]["derived"] == state


@pytest.mark.parametrize("name", ["close_order", "close_ordr", "shop.tasks.close_order"])
def test_a_task_that_is_none_is_refused_with_the_nearest(run, orders, name):
    answer = run("list", "--task", name)
    assert (answer.code, answer.error) == (2, f"--task {name}: no such task (did you mean {close_order.name!r}?).")


def test_a_state_may_be_written_in_capitals(run, orders):
    job = orders.ended("fail")
    for words in (("--state", "Failed"), ("--search", "state:FAILED")):
        assert listed(run("list", *words, "--json")) == [ids.short(job.id)]


def test_list_stops_at_its_limit(run, orders):
    jobs = orders.scheduled(51)
    assert len(listed(run("list", "--json"))) == 50
    assert listed(run("list", "--limit", "1", "--json")) == [jobs[-1].short_id]


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_list_refuses_a_limit_below_1(run, orders, limit):
    answer = run("list", "--limit", limit)
    assert answer.code != 0
    assert "not a whole number of at least 1" in answer.error


def test_list_of_nothing_says_so(run, orders):
    assert run("list").out == "No matching jobs.\n"
    assert run("list", "--json").json == []
    assert run("list", "--state", "running").out == "No matching jobs.\n"
    assert (
        run("list", "--state", "running", "--queue", "orders").out == "No matching jobs.\nTry instead: queue:orders | state:running\n"
    )


def test_list_keeps_to_one_line_and_out_of_the_terminals_way(run, orders):
    orders.ended("fail", b'{"c": "shop.Refused", "m": "\\u001b[31mno\\nroute ' + b"x" * 100 + b'"}')
    answer = run("list")
    assert len(answer.lines) == 2
    assert "shop.Refused: \\u001b[31mno route xx" in answer.out
    assert answer.lines[1].endswith("…")


def test_an_unknown_queue_comes_with_the_nearest_name(run, orders):
    answer = run("list", "--queue", "oders")
    assert answer.code == 2
    assert "(did you mean 'orders'?)" in answer.error


def test_an_unknown_task_comes_with_the_nearest_name(run, orders):
    answer = run("list", "--task", "tests.tasks_for_tests.pink")
    assert answer.code == 2
    assert f"did you mean '{ping.name}'?" in answer.error


def test_a_task_that_is_gone_from_the_code_is_still_found_by_its_rows(run, orders):
    orders.scheduled()
    Job.objects.update(task="shop.gone")
    assert len(listed(run("list", "--task", "shop.gone", "--json"))) == 1


def test_an_unknown_state_is_refused(run, orders):
    answer = run("list", "--state", "waiting")
    assert answer.code != 0
    assert "'waiting' is not a state. Choose from: scheduled, running" in answer.error


def test_list_does_not_need_redis(run, orders, settings):
    [job] = orders.scheduled()
    lose_redis(settings)
    assert listed(run("list", "--json")) == [ids.short(job.id)]


def test_the_database_down_is_one_sentence(run, orders, settings, monkeypatch):
    without_database(settings, monkeypatch)
    answer = run("list")
    assert (answer.code, answer.out) == (1, "")
    assert answer.error.startswith("The database cannot be read: ")


def test_list_speaks_the_language_of_the_admins_search(run, orders):
    failed = orders.ended("fail")
    keyed = orders.scheduled(key="o:7")[0]
    [by_argument] = [delayq.schedule(close_order, 77)]
    assert listed(run("list", "--search", "state:failed task:close_order", "--json")) == [ids.short(failed.id)]
    assert listed(run("list", "--search", "o:7", "--json")) == [ids.short(keyed.id)]
    assert listed(run("list", "--search", "arg:order_id=77", "--json")) == [ids.short(by_argument.id)]
    assert listed(run("list", "--queue", "orders", "--search", "state:failed", "--json")) == [ids.short(failed.id)]
    assert listed(run("list", "--state", "scheduled", "--search", "state:failed", "--json")) == []


@pytest.mark.parametrize("search", ["state:waiting", "sate:failed task:ping", "after:soon"])
def test_a_search_that_is_not_understood_finds_nothing_and_says_why(run, orders, settings, search):
    settings.LANGUAGE_CODE = "de"
    orders.scheduled()
    answer = run("list", "--search", search)
    assert answer.code == 2
    assert answer.error.startswith(f"--search {search}: ")
    assert "Die " not in answer.error


@pytest.mark.parametrize("search", ["", " "])
def test_an_empty_search_is_refused_since_it_would_mean_every_job(run, orders, search):
    orders.scheduled()
    for verb in ("list", "cancel"):
        answer = run(verb, "--search", search)
        assert (answer.code, answer.error) == (2, "--search is empty.")
    assert Job.objects.get().state == "scheduled"


def test_a_list_reads_on_where_the_database_finds_more_than_is_meant(run, orders):
    wanted = [delayq.schedule(close_order, 77) for _ in range(3)]
    orders.scheduled(4)
    found = listed(run("list", "--search", "arg:order_id=77", "--limit", "2", "--json"))
    assert found == [wanted[2].short_id, wanted[1].short_id]


def test_list_as_csv_has_the_fields_of_its_json(run, orders):
    [one], [two] = orders.scheduled(key="k"), orders.scheduled(key="=k")
    document = run("list", "--json").json[0]
    head, *rows = csv.reader(io.StringIO(run("list", "--csv").out, newline=""))
    assert head == list(document)
    assert [row[0] for row in rows] == [ids.short(two.id), ids.short(one.id)]
    assert dict(zip(head, rows[0], strict=True))["key"] == "'=k"
    assert run("list", "--csv", "--limit", "1").out.count("\n") == 2
    answer = run("list", "--csv", "--json")
    assert answer.code == 2
    assert "not both" in answer.error
