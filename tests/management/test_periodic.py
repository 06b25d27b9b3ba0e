"""`delayq periodic`, and the doctor's findings about schedules."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import translation

from django_delayq import clock, ids
from django_delayq.console.wording import second
from django_delayq.models import Event, Job, Periodic, Tick
from django_delayq.periodic import schedules
from tests.admin.test_periodic import TASK, ahead, declared, made, past
from tests.management.test_doctor import findings


def test_without_schedules_it_says_where_they_come_from(run, orders):
    answer = run("periodic")
    assert (answer.code, answer.out.partition(".")[0]) == (0, "There are no schedules")
    assert run("periodic", "--json").json == []


def test_it_lists_them_with_their_next_dates_and_how_the_last_ended(run, orders):
    row, job = made(), orders.ended("fail", max_attempts=1)
    made("bank", every="10m")
    past(row, 90, job_id=job.id)
    head, bank, nightly = run("periodic").lines
    assert head.split() == ["name", "state", "dates", "next", "last", "ended", "task"]
    assert bank.startswith("bank     on     every 10m")
    assert "0 3 * * *, Europe/Berlin" in nightly
    assert second(ahead(row)[0]) in nightly
    assert "failed" in nightly
    one = run("periodic", "--json").json[1]
    assert (one["name"], one["state"], one["owner"], one["last"]["state"]) == ("nightly", "on", "admin", "failed")
    assert [datetime.fromisoformat(moment) for moment in one["next"]] == ahead(row, 1)


def test_of_one_it_says_all(run, orders, monkeypatch):
    row = declared(monkeypatch, overlap="skip", jitter="5m")
    schedules.override("nightly", every="2h", actor="ann", reason="the bank moves")
    schedules.run_now("nightly", actor="bob", reason="once more")
    past(row, 60, fate="missed")
    text = run("periodic", "nightly").out
    assert "every 2h, jitter 5m" in text
    assert "own_dates    0 3 * * *, Europe/Berlin, jitter 5m" in text
    assert "hand, bob" in text
    assert "missed" in text
    assert "the bank moves" in text
    document = run("periodic", "nightly", "--json").json
    assert [datetime.fromisoformat(moment) for moment in document["next"]] == ahead(Periodic.objects.get())
    assert len(document["next"]) == 10
    assert (document["overridden"], document["overlap"], document["missed"], document["owner"]) == (True, "skip", "once", "code")
    assert [tick["state"] for tick in document["ticks"]][-1] == "missed"
    [by_hand] = [tick for tick in document["ticks"] if tick["by_hand"]]
    assert ids.full(by_hand["job"]) == Tick.objects.get(by_hand=True).job_id
    assert [event["kind"] for event in document["events"]] == ["periodic_run", "periodic_dates"]
    assert len(run("periodic", "nightly", "--limit", 1, "--json").json["ticks"]) == 1


def test_it_turns_on_and_off_with_a_reason(run, orders):
    made()
    assert run("periodic", "nightly", "--off", "--reason", "stock taking").out == "nightly is off.\n"
    event = Event.objects.get(kind="periodic_off")
    assert event.actor.startswith("cli")
    assert event.reason == "stock taking"
    assert run("periodic", "nightly", "--off").out == "nightly is already off.\n"
    assert run("periodic", "nightly", "--json").json["next"] == []
    assert run("periodic", "nightly", "--on", "--json").json == {"name": "nightly", "on": True, "changed": True}
    assert Periodic.objects.get().enabled


def test_it_runs_one_now(run, orders):
    made()
    job = run("periodic", "nightly", "--run-now", "--reason", "why", "--json").json["job"]
    assert Job.objects.filter(pk=ids.full(job), task=TASK).exists()
    assert Tick.objects.get(by_hand=True).job_id == ids.full(job)
    assert "is due now." in run("periodic", "nightly", "--run-now").out


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("nihgtly",), 1, "There is no schedule 'nihgtly' (did you mean 'nightly'?)."),
        (("nihgtly", "--off"), 1, "There is no schedule 'nihgtly'"),
        (("--off",), 2, "Specify the name of the schedule"),
        (("nightly", "--on", "--off"), 1, "not allowed with argument"),
    ],
)
def test_what_cannot_be_done_is_said(run, orders, words, code, complaint):
    made()
    answer = run("periodic", *words)
    assert answer.code == code
    assert complaint in answer.error


def test_a_retired_one_is_brought_back_by_code_only(run, orders, monkeypatch):
    declared(monkeypatch)
    Periodic.objects.update(retired_at=clock.now(), enabled=False)
    for act in ("--on", "--off", "--run-now"):
        answer = run("periodic", "nightly", act)
        assert (answer.code, "is retired: no code declares it" in answer.error) == (1, True)
    assert run("periodic", "--json").json[0]["state"] == "retired"


def test_one_that_makes_no_jobs_makes_the_exit_code_1_and_says_why_in_english(run, orders):
    made()
    Periodic.objects.update(problem={"code": "task_unknown", "fields": {"name": "shop.gone"}})
    assert run("periodic").code == 1
    with translation.override("de"):
        answer = run("periodic", "nightly")
        [finding] = findings(run("doctor", "--json"), "D030")
    assert answer.code == 1
    assert "No task named shop.gone is registered" in answer.out
    assert "'nightly' creates no jobs: No task named shop.gone" in finding["message"]
    assert finding["level"] == "error"


def test_dates_that_this_host_cannot_read_are_said(run, orders):
    made()
    Periodic.objects.update(timezone="Mars/Olympus")
    assert "'Mars/Olympus' is not a time zone that this host knows" in run("periodic", "nightly", "--json").json["trouble"]


def test_what_is_sensitive_is_masked(run, orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["order_id"]}
    made(args=[424242])
    for words in (("periodic", "--json"), ("periodic", "nightly"), ("periodic", "nightly", "--json")):
        assert "424242" not in run(*words).out


def test_the_doctor_tells_of_ticks_that_nobody_writes(run, orders):
    made()
    assert findings(run("doctor", "--json"), "D031") == []
    Periodic.objects.update(write_at=clock.now() - timedelta(minutes=2))
    [finding] = findings(run("doctor", "--json"), "D031")
    assert "the schedule 'nightly'" in finding["message"]
    assert "role relay" in finding["hint"]
    schedules.turn_off("nightly", actor="ann")
    assert findings(run("doctor", "--json"), "D031") == []


def test_the_doctor_tells_of_retired_ones_for_a_week(run, orders, monkeypatch):
    declared(monkeypatch)
    Periodic.objects.update(retired_at=clock.now())
    [finding] = findings(run("doctor", "--json"), "D032")
    assert "'nightly' was retired at" in finding["message"]
    Periodic.objects.update(retired_at=clock.now() - timedelta(days=8))
    assert findings(run("doctor", "--json"), "D032") == []


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
@pytest.mark.parametrize("words", [("periodic", "nightly"), ("set-aside",)])
def test_a_limit_below_1_is_refused(run, orders, words, limit):
    made()
    assert "--limit" in run(*words, "--limit", limit).error


@pytest.mark.parametrize("option", [(), ("--on",), ("--off",), ("--run-now",)])
@pytest.mark.parametrize("name", ["a\udcff", "a\x00b"])
def test_a_name_that_no_schedule_can_have_is_a_mistake_of_usage(run, orders, name, option):
    answer = run("periodic", name, *option)
    assert (answer.code, "is not a valid schedule name" in answer.error) == (2, True)
    answer.error.encode()
