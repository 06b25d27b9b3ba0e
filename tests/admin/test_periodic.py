"""Schedules in the admin: the list, the page, the actions and the forms."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape

import django_delayq as delayq
from django_delayq import clock
from django_delayq.admin import periodic_admin
from django_delayq.models import Event, Job, Periodic, Tick
from django_delayq.periodic import schedule_rows, schedules
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.declarations import declarations
from django_delayq.periodic.due_ticks import TickLoop
from tests.admin.conftest import JOBS, QUEUES, said, sent_live
from tests.admin.conftest import page as job_page
from tests.admin.test_dashboard import test_every_sign_leads_to_its_remedy as remedies_are_told
from tests.tasks_for_tests import close_order

SCHEDULES = "/admin/delayq/periodic/"
TASK = close_order.name
ACTS = ("on", "off", "run", "drop")
DATES = {"cron": "0 4 * * *", "timezone": "Europe/Berlin", "every": ""}


def made(name: str = "nightly", **options: Any) -> Periodic:
    """A schedule from the admin whose waiting tick is written."""
    given = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "args": [7], "actor": "admin:ann"} | options
    if "every" in given:
        given |= {"cron": "", "timezone": "UTC"}
    schedules.create(name, given.pop("task", TASK), **given)
    TickLoop().poll()
    return Periodic.objects.get(name=name)


def declared(monkeypatch: pytest.MonkeyPatch, name: str = "nightly", **options: Any) -> Periodic:
    """A schedule from the code that a worker has seen."""
    monkeypatch.setattr(declarations, "_all", dict(declarations._all))
    delayq.periodic(**{"cron": "0 3 * * *", "timezone": "Europe/Berlin", "name": name, "args": [7]} | options)(close_order)
    TickLoop().poll()
    return Periodic.objects.get(name=name)


def page(row: Periodic, act: str = "change") -> str:
    return f"{SCHEDULES}{row.pk}/{act}/"


def ahead(row: Periodic, n: int = 10) -> list[datetime]:
    """Returns its next dates in UTC, by the values in force."""
    return list(islice(schedule_rows.dates_of(row).after(clock.now()), n))


def text_of(answer: Any) -> str:
    """Returns the text of a page without tags and with single spaces."""
    return " ".join(re.sub(r"<[^>]+>", " ", answer.content.decode()).split())


def past(row: Periodic, minutes: int, **fields: Any) -> Tick:
    """Creates a tick of that many minutes ago."""
    then = clock.now() - timedelta(minutes=minutes)
    given = {"at": then, "run_at": then, "fate": "scheduled", "written_at": then} | fields
    return Tick.objects.create(schedule=row, **given)


# the list


def test_the_list_says_how_each_stands_when_it_comes_and_how_the_last_ended(orders, staff):
    row, _off = made(), made("off", every="10m", args=[8])
    schedules.turn_off("off", actor="ann")
    job = orders.ended("fail", max_attempts=1)
    past(row, 90, job_id=job.id)
    past(row, 95, fate="missed")
    text = text_of(staff().get(SCHEDULES))
    assert "At 03:00 every day, Europe/Berlin 0 3 * * *" in text
    assert "every 10m" in text
    assert "failed" in text
    assert "created here" in text
    assert re.search(r"on nightly .* in \d+", text)
    html = staff().get(SCHEDULES).content.decode()
    assert f'href="{job_page(job)}"' in html
    assert re.search(r"[\d-]+ (20|21):00:00-0[56]:00", html), "3 o'clock in Berlin, in the time zone of the site"


def test_the_link_to_a_job_is_for_those_whom_it_leads_somewhere(orders, staff):
    row, job = made(), orders.ended("ack")
    past(row, 90, job_id=job.id)
    client = staff("view_periodic")
    for address in (SCHEDULES, page(row)):
        assert "/delayq/job/" not in client.get(address).content.decode()
        assert "succeeded" in text_of(client.get(address))


def test_the_list_is_narrowed_down_by_state_and_owner(orders, staff, monkeypatch):
    made("on"), made("off"), made("trouble")
    declared(monkeypatch, "code")
    schedules.turn_off("off", actor="ann")
    Periodic.objects.filter(name="trouble").update(problem={"code": "task_unknown", "fields": {"name": "x"}})
    client = staff()

    def names(query: str) -> set[str]:
        return {row.name for row in client.get(SCHEDULES + query).context["cl"].result_list}

    assert names("?state=on") == {"on", "code"}
    assert names("?state=off") == {"off"}
    assert names("?state=trouble") == {"trouble"}
    assert names("?state=retired") == set()
    assert names("?state=faild") == set()
    assert names("?owner=code") == {"code"}
    assert names("?q=troub") == {"trouble"}
    assert client.get(SCHEDULES + "?args__contains=7").status_code == 400


def test_a_thousand_schedules_are_twenty_pages_and_a_page_takes_as_many_queries_as_one_line(orders, staff):
    client, row = staff(), made()
    job = orders.ended("ack")
    past(row, 5, job_id=job.id)

    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            assert client.get(SCHEDULES).status_code == 200
        return len(found)

    queries(), queries()
    few = queries()
    now = clock.now()
    common = {"task": TASK, "owner": "admin", "cron": "0 3 * * *", "timezone": "UTC", "decided_to": now, "created_at": now}
    Periodic.objects.bulk_create(Periodic(name=f"n{number}", **common) for number in range(1000))
    for other in Periodic.objects.order_by("name")[:40]:
        past(other, 5, job_id=job.id)
    assert queries() == few <= 12
    shown = client.get(SCHEDULES)
    assert len(shown.context["cl"].result_list) == 50
    assert "1001 schedules" in text_of(shown)


def test_it_stays_fresh_and_is_not_sent_again_while_nothing_changes(orders, staff):
    row, client = made(cron="0 3 1 1 *"), staff()
    for address in (SCHEDULES, page(row)):
        part, again = sent_live(client, address)
        assert "<html" not in part.content.decode()
        assert "nightly" in part.content.decode()
        assert again.status_code == 304


def test_dates_that_cannot_be_read_here_do_not_break_a_page(orders, staff):
    row = made()
    Periodic.objects.update(timezone="Mars/Olympus")
    assert "not available here" in text_of(staff().get(SCHEDULES))
    assert "Mars/Olympus" in text_of(staff().get(page(row)))


# the page


def test_the_page_shows_what_code_says_and_what_people_say_beside_it(orders, staff, monkeypatch):
    row = declared(monkeypatch, missed="all", overlap="wait", jitter="5m")
    schedules.override("nightly", cron="30 5 * * 1", timezone="America/New_York", actor="admin:bob", reason="the bank moves house")
    text = text_of(staff().get(page(row)))
    assert "effective dates 30 5 * * 1, America/New_York, jitter 5m At 05:30 on Monday, America/New_York set by users" in text
    assert text.count(" 05:30:00-0") == 10
    assert "dates from the code 0 3 * * *, Europe/Berlin, jitter 5m" in text
    assert "code tests.admin.test_periodic, line" in text
    assert "all: every missed tick creates a job" in text
    assert "wait: a run waits" in text
    assert "dates overridden admin:bob the bank moves house 30 5 * * 1, America/New_York, jitter 5m" in text


def test_the_next_ten_dates_are_shown_on_the_clock_of_the_schedule(orders, staff):
    row = made()
    text = text_of(staff().get(page(row)))
    following = ahead(row)
    assert len(following) == 10
    for moment in following:
        assert moment.astimezone(ZoneInfo("America/Chicago")).isoformat(" ", "seconds") in text
    assert text.count(" 03:00:00+0") == 10
    assert "America/Chicago" in text, "the clock of the reader stands beside them"


def test_a_change_of_the_clock_is_shown(time_machine_to):
    time_machine_to(datetime(2031, 3, 28, 12, tzinfo=UTC))
    before, gap, after = periodic_admin.dates_ahead(Dates(cron="30 2 * * *", timezone="Europe/Berlin"), 3)
    assert (before["there"], before["shifted"]) == ("2031-03-29 02:30:00+01:00", False)
    assert (gap["there"], gap["shifted"]) == ("2031-03-30 03:00:00+02:00", True)
    assert (after["there"], after["shifted"]) == ("2031-03-31 02:30:00+02:00", False)


@pytest.fixture
def time_machine_to(monkeypatch):
    return lambda moment: monkeypatch.setattr(clock, "now", lambda: moment)


def test_ticks_say_what_became_of_them(orders, staff):
    row = made()
    late = orders.ended("ack")
    Job.objects.filter(pk=late.id).update(started_at=clock.now() - timedelta(minutes=1))
    past(row, 3, job_id=late.id)
    past(row, 10, fate="missed")
    past(row, 20, fate="skipped")
    past(row, 30, job_id=delayq.schedule(close_order, 1).id, by_hand=True, actor="admin:bob")
    past(row, 40, job_id="01890a5d-ac96-774b-bcce-b302099a8057")
    past(row, 50, fate="cancelled", actor="admin:eve")
    text = text_of(staff().get(page(row)))
    ticks = text.partition(" Ticks ")[2]
    shown = ("succeeded", "missed", "skipped", "by hand admin:bob", "the job was deleted", "withdrawn admin:eve")
    places = [ticks.index(word) for word in shown]
    assert places == sorted(places)
    assert ids_of(late) in ticks


def ids_of(job: delayq.Job) -> str:
    return Job.objects.get(pk=job.id).short_id


def test_earlier_ticks_are_on_pages_of_their_own(orders, staff):
    row, client = made(), staff()
    for number in range(120):
        past(row, number + 1, fate="missed")
    found, address = [], page(row)
    while address:
        answer = client.get(address)
        found.append(len(answer.context["ticks"]))
        earlier = re.search(r'href="(\?behind=\d+)"', answer.content.decode())
        address = page(row) + earlier[1] if earlier else ""
    assert found == [50, 50, 21]
    assert len(client.get(page(row) + "?behind=nonsense").context["ticks"]) == 50


def test_arguments_are_masked_for_those_who_may_not_see_them(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["order_id"]}
    row = made(args=[424242])
    assert "424242" not in staff().get(page(row)).content.decode()
    assert "***" in staff().get(page(row)).content.decode()
    assert "424242" in staff("view_periodic", "view_sensitive").get(page(row)).content.decode()
    form = staff().get(page(row, "edit")).content.decode()
    assert "424242" not in form
    assert 'name="task"' not in form, "another task might show them"


def test_what_rows_carry_is_escaped_and_made_visible(orders, staff):
    evil = "<b>x</b>\u202eevil"
    row = made()
    Periodic.objects.filter(pk=row.pk).update(name=evil, task=evil, timezone=evil, args=[evil])
    past(row, 5, fate="cancelled", actor=evil)
    Periodic.objects.filter(pk=row.pk).update(problem={"code": "unexpected", "fields": {"kind": evil, "cause": evil}})
    client = staff()
    for address in (SCHEDULES, page(row), page(row, "edit"), page(row, "override"), page(row, "delete")):
        html = client.get(address).content.decode()
        assert "<b>x" not in html, address
        shown = re.sub(r"<textarea.*?</textarea>| value=\"[^\"]*\"", "", html, flags=re.DOTALL)  # but for what one may write there
        assert "\u202e" not in shown, address


def test_a_row_in_trouble_says_why(orders, staff):
    row = made()
    Periodic.objects.update(problem={"code": "config", "fields": {"message": "The cron is odd.", "hint": "Write another."}})
    assert "This schedule creates no jobs: The cron is odd. Write another." in text_of(staff().get(page(row)))


def test_an_address_that_is_none_is_answered_as_django_does(orders, staff):
    client = staff()
    for address in ("77", "9" * 30, "nonsense", "-1", "²"):
        for act in ("change", "override", "edit", "delete"):
            assert client.get(f"{SCHEDULES}{address}/{act}/").status_code == 302
        assert client.post(f"{SCHEDULES}{address}/off/").status_code == 302


# acts


def test_acts_are_done_logged_and_told(orders, staff):
    row, client = made(), staff()
    for act, kind, words in (
        ("off", "periodic_off", "The schedule is off"),
        ("on", "periodic_on", "The schedule is on"),
        ("run", "periodic_run", "A job of the schedule is due now."),
    ):
        answer = client.post(page(row, act), {"reason": f"why {act}"}, follow=True)
        assert said(answer)[0].startswith(words)
        event = Event.objects.get(kind=kind)
        assert (event.actor, event.reason) == ("admin:clerk0", f"why {act}")
        row.refresh_from_db()
        assert row.enabled is (act != "off")
    logged = [entry.change_message for entry in LogEntry.objects.filter(object_id=str(row.pk)).order_by("pk")]
    assert logged == ["Turn off: why off", "Turn on: why on", "Run now: why run"]
    assert Tick.objects.get(by_hand=True).actor == "admin:clerk0"
    assert "Turn off: why off" in client.get(page(row, "history")).content.decode()


def test_what_is_so_already_is_said_and_not_logged(orders, staff):
    row, client = made(), staff()
    for act in ("on", "drop"):
        assert said(client.post(page(row, act), follow=True)) == ["Nothing was changed: the schedule is already in this state."]
    assert not LogEntry.objects.exists()


def test_a_get_changes_nothing(orders, staff):
    row, client = made(), staff()
    for act in ACTS:
        assert client.get(page(row, act)).status_code == 405
    row.refresh_from_db()
    assert row.enabled
    assert not Tick.objects.filter(by_hand=True).exists()


def test_a_post_without_the_token_changes_nothing(orders, staff):
    row, client = made(), staff()
    client.handler.enforce_csrf_checks = True
    for act in (*ACTS, "override", "edit", "delete"):
        assert client.post(page(row, act), DATES).status_code == 403
    assert client.post(f"{SCHEDULES}add/", DATES).status_code == 403
    assert Periodic.objects.get().enabled


@pytest.mark.parametrize(
    ("act", "needs"),
    [
        ("on", "switch_periodic"),
        ("off", "switch_periodic"),
        ("run", "run_periodic"),
        ("drop", "override_periodic"),
        ("override", "override_periodic"),
        ("edit", "schedule_job"),
        ("delete", "schedule_job"),
    ],
)
def test_each_act_has_a_permission_of_its_own(orders, staff, act, needs):
    row = made()
    schedules.override("nightly", cron="0 5 * * *", actor="ann")
    all_others = {"view_periodic", "switch_periodic", "run_periodic", "override_periodic", "schedule_job", "view_job"} - {needs}
    assert staff(*all_others).post(page(row, act), DATES).status_code == 403
    assert staff(needs).post(page(row, act), DATES).status_code == 403, "one must see it, too"
    assert staff("view_periodic", needs).post(page(row, act), DATES).status_code in (200, 302, 400)
    shown = staff(*all_others).get(page(row)).content.decode()
    assert f"/{act}/" not in shown


def test_who_may_only_look_is_offered_nothing(orders, staff):
    row = made()
    html = staff("view_periodic").get(page(row)).content.decode()
    assert "Actions</h2>" not in html
    assert "add/" not in staff("view_periodic").get(SCHEDULES).content.decode()
    assert staff("view_job").get(SCHEDULES).status_code == 403
    assert staff("view_job").get(page(row)).status_code == 403
    assert staff("view_periodic").get(f"{SCHEDULES}add/").status_code == 403


def test_a_retired_one_says_so_and_is_left_alone(orders, staff, monkeypatch):
    row, client = declared(monkeypatch), staff()
    Periodic.objects.update(retired_at=clock.now())
    text = text_of(client.get(page(row)))
    assert "This schedule was retired at" in text
    assert "Turn off" not in text
    for act, given in (("run", {}), ("off", {}), ("override", DATES)):
        (told,) = said(client.post(page(row, act), given, follow=True))
        assert "is retired: no code declares it" in told
    assert not Periodic.objects.get().overridden
    assert not LogEntry.objects.exists()


def test_a_task_that_is_gone_is_told_in_words(orders, staff):
    row = made()
    Periodic.objects.update(task="shop.tasks.renamed")
    assert "No task named shop.tasks.renamed" in said(staff().post(page(row, "run"), follow=True))[0]


# forms


def test_other_dates_hold_from_now_on_and_may_be_dropped(orders, staff):
    row, client = made(), staff()
    answer = client.post(page(row, "override"), {**DATES, "reason": "summer"}, follow=True)
    assert said(answer) == ["These dates apply from now on."]
    row.refresh_from_db()
    assert (row.override_cron, row.override_timezone, row.cron) == ("0 4 * * *", "Europe/Berlin", "0 3 * * *")
    assert Event.objects.get(kind="periodic_dates").reason == "summer"
    client.post(page(row, "drop"), {"reason": ""})
    row.refresh_from_db()
    assert not row.overridden
    client.post(page(row, "override"), {"cron": "", "timezone": "", "every": "90s"})
    row.refresh_from_db()
    assert (row.override_cron, row.override_every_ms) == ("", 90_000)


def test_the_dates_are_shown_before_anything_is_saved(orders, staff):
    row = made()
    answer = staff().post(page(row, "override"), {**DATES, "look": "1"})
    assert text_of(answer).count(" 04:00:00+0") == 10
    row.refresh_from_db()
    assert not row.overridden
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"cron": "", "every": ""}, "Enter either a cron expression or a period."),
        ({"every": "10m"}, "Enter either a cron expression or a period."),
        ({"cron": "0 25 * * *"}, "has '25' as hour"),
        ({"cron": "@daily"}, "Use '0 0 * * *'."),
        ({"cron": "0 0 30 2 *"}, "The cron expression never matches a date"),
        ({"timezone": "Europe/Berlni"}, "did you mean 'Europe/Berlin'?"),
        ({"timezone": "localtime"}, "'localtime' is not a geographic time zone"),
        ({"cron": "", "every": "soon"}, "soon is not a valid duration."),
        ({"cron": "", "every": "500ms"}, "is too short"),
        ({"cron": "", "every": "0.0000001s"}, "too short"),
        ({"reason": "x" * 501}, "at most 500 characters"),
        ({"cron": "\x00 3 * * *"}, "Null characters are not allowed."),
    ],
)
def test_dates_that_cannot_be_are_said_where_they_stand(orders, staff, given, complaint):
    row = made()
    answer = staff().post(page(row, "override"), {**DATES, **given})
    assert answer.status_code == 400
    assert escape(complaint) in answer.content.decode()
    row.refresh_from_db()
    assert not row.overridden


WHOLE = {
    "name": "weekly",
    "task": TASK,
    "args": "[7]",
    "kwargs": '{"note": "x"}',
    "cron": "0 8 * * 1",
    "timezone": "America/New_York",
    "every": "",
    "spread": "5m",
    "missed": "all",
    "overlap": "skip",
    "reason": "asked for",
}


def digest(client: Any, row: Periodic) -> str:
    """Returns the digest that the form contains now."""
    (found,) = re.findall(r'name="digest" value="(\w+)"', client.get(page(row, "edit")).content.decode())
    return found


def test_a_form_that_was_opened_before_somebody_else_changed_the_schedule_is_refused(orders, staff):
    row, client = made(), staff()
    opened = digest(client, row)
    schedules.change("nightly", every="1h", args=[8], actor="kim")
    mine = {**WHOLE, "digest": opened}
    answer = client.post(page(row, "edit"), mine)
    assert answer.status_code == 400
    assert "Another user has changed the schedule in the meantime" in text_of(answer)
    row.refresh_from_db()
    assert (row.cron, row.every_ms, row.args) == ("", 3_600_000, [8])
    assert client.post(page(row, "edit"), {**WHOLE, "digest": digest(client, row)}).status_code == 302
    row.refresh_from_db()
    assert (row.cron, row.args) == ("0 8 * * 1", [7])


def test_people_make_a_schedule_change_it_and_delete_it(orders, staff):
    client = staff()
    assert client.get(f"{SCHEDULES}add/").status_code == 200
    answer = client.post(f"{SCHEDULES}add/", WHOLE, follow=True)
    assert said(answer) == ["The schedule was added and is on."]
    row = Periodic.objects.get()
    assert (row.name, row.task, row.args, row.kwargs, row.owner) == ("weekly", TASK, [7], {"note": "x"}, "admin")
    assert (row.cron, row.timezone, row.jitter_ms, row.missed, row.overlap) == ("0 8 * * 1", "America/New_York", 300_000, "all", "skip")
    TickLoop().poll()
    waiting = Tick.objects.get()

    shown = client.get(page(row, "edit")).context["form"].initial
    assert (shown["cron"], shown["spread"], shown["task"]) == ("0 8 * * 1", "5m", TASK)
    changed = {**WHOLE, "cron": "", "every": "2h", "spread": "", "args": "[8]", "kwargs": "", "digest": digest(client, row)}
    assert said(client.post(page(row, "edit"), changed, follow=True))[0].startswith("The schedule was changed")
    row.refresh_from_db()
    assert (row.cron, row.every_ms, row.args, row.kwargs, row.jitter_ms) == ("", 7_200_000, [8], {}, 0)
    waiting.refresh_from_db()
    assert waiting.fate == "cancelled"

    assert "and its ticks are deleted" in text_of(client.get(page(row, "delete")))
    assert said(client.post(page(row, "delete"), {"reason": "over"}, follow=True)) == ["The schedule was deleted."]
    assert not Periodic.objects.exists()
    flags = list(LogEntry.objects.order_by("pk").values_list("action_flag", "change_message"))
    assert flags == [(ADDITION, "Created: asked for"), (CHANGE, "Change: asked for"), (DELETION, "Delete: over")]
    kinds = set(Event.objects.filter(job=None).values_list("kind", flat=True))
    assert {"periodic_created", "periodic_changed", "periodic_deleted"} <= kinds


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"task": "os.system"}, "Select a valid choice."),
        ({"args": "[]"}, "The argument order_id is missing."),
        ({"args": "{}"}, "Enter a JSON list"),
        ({"args": "[7"}, "Line 1, column 3 is not valid JSON."),
        ({"kwargs": '{"colour": 1}'}, "The task does not accept the argument colour."),
        ({"args": f"[{'7' * 5000}]"}, "This is not valid JSON"),
        ({"args": '["' + "x" * 70_000 + '"]'}, "The limit is"),
        ({"name": ""}, "This field is required."),
        ({"name": "x" * 201}, "at most 200 characters"),
        ({"name": "a\u202eb"}, "The name cannot contain invisible characters."),
        ({"name": "nightly"}, "A schedule with this name already exists."),
        ({"spread": "2d"}, "is longer than one day"),
        ({"missed": "never"}, "Select a valid choice."),
        ({"cron": "", "every": "1m", "spread": "5m"}, "is not shorter than"),
    ],
)
def test_what_cannot_be_a_schedule_is_said(orders, staff, given, complaint):
    made()
    answer = staff().post(f"{SCHEDULES}add/", {**WHOLE, **given})
    assert answer.status_code == 400
    assert escape(complaint) in answer.content.decode()
    assert [row.name for row in Periodic.objects.all()] == ["nightly"]


def test_arguments_that_one_may_not_see_stay_when_the_rest_is_changed(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["order_id"]}
    row = made(args=[424242])
    changed = {**WHOLE, "args": "[1]", "task": "tests.tasks_for_tests.takes_all"}
    client = staff("view_periodic", "schedule_job")
    assert "You do not have permission to view the arguments" in text_of(client.get(page(row, "edit")))
    assert client.post(page(row, "edit"), {**changed, "digest": digest(client, row)}).status_code == 302
    row.refresh_from_db()
    assert (row.args, row.task, row.cron) == ([424242], TASK, "0 8 * * 1")


def test_what_code_declares_is_neither_changed_nor_deleted(orders, staff, monkeypatch):
    row, client = declared(monkeypatch), staff()
    for act in ("edit", "delete"):
        assert client.get(page(row, act)).status_code == 403
        assert client.post(page(row, act), WHOLE).status_code == 403
    assert "Delete …" not in client.get(page(row)).content.decode()
    assert Periodic.objects.exists()


# elsewhere


def test_the_page_and_the_list_of_jobs_name_the_schedule(orders, staff):
    row = made()
    orders.fold()
    job = Job.objects.get()
    for address in (JOBS, reverse("admin:delayq_job_change", args=[job.pk])):
        assert f'href="{page(row)}"' in staff().get(address).content.decode()
        html = staff("view_job").get(address).content.decode()
        assert page(row) not in html
        assert "nightly" in html, "its name is no secret: it stands in meta"


def test_the_dashboard_says_what_is_wrong_with_schedules_and_nothing_else_of_them(orders, staff):
    made("one"), made("two"), made("three")
    client = staff()
    assert "remedies/#schedules" not in client.get(QUEUES).content.decode()
    Periodic.objects.filter(name="one").update(problem={"code": "task_unknown", "fields": {"name": "x"}})
    Periodic.objects.filter(name="two").update(write_at=clock.now() - timedelta(minutes=2))
    Periodic.objects.filter(name="three").update(retired_at=clock.now())
    text = text_of(client.get(QUEUES))
    assert "1 with problems, 1 late, 1 retired" in text
    Periodic.objects.update(retired_at=clock.now() - timedelta(days=8))
    assert "remedies/#schedules" not in client.get(QUEUES).content.decode()


def test_the_sign_of_schedules_leads_to_its_remedy(orders, staff):
    made()
    Periodic.objects.update(retired_at=clock.now())
    remedies_are_told(orders, staff)
