"""OR, NOT and free text: compares the search with a separate implementation over random rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.admin import JobAdmin
from django_delayq.console import keyset, search_parser, selection
from django_delayq.console.moments import parse_moment
from django_delayq.console.selection import Selection
from django_delayq.models import Job, Operation
from django_delayq.producer.task import Task, make_task, registry
from django_delayq.store.reads.inspector import Inspector
from tests.admin.conftest import JOBS, OPERATIONS
from tests.admin.test_operations import begin, work
from tests.tasks_for_tests import close_order, ping

Meant = Callable[[Job], bool]


def everything(text: str, size: int = 7, **parts: str) -> list[Job]:
    """Returns all pages."""
    wanted, jobs, after = Selection(text=text, **parts), list[Job](), ""
    assert not wanted.search.complaints, wanted.search.complaints
    while True:
        page = keyset.page(wanted, Job.objects.all(), size, after=after)
        jobs += page.jobs
        if not page.after:
            return jobs
        after = page.after


def numbers(text: str, **parts: str) -> list[int]:
    return sorted(job.args[0] for job in everything(text, **parts))


# the oracle: each atom with its meaning in plain Python

NOW = clock.now()
ATOMS: dict[str, Meant] = {
    "state:failed": lambda job: job.state == "failed",
    "STATE:Scheduled": lambda job: job.state == "scheduled",
    "state:retrying": lambda job: job.state == "scheduled" and job.attempts > 0,
    "state:due": lambda job: job.state == "scheduled" and job.run_at <= NOW,
    "queue:orders": lambda job: job.queue == "orders",
    "task:close": lambda job: "close" in job.task,
    f"task:{ping.name}": lambda job: job.task == ping.name,
    "error:timeout": lambda job: "timeout" in job.error.lower(),
    "error:503": lambda job: "503" in job.error,
    "key:order-5": lambda job: job.key == "order-5",
    "key:order-1*": lambda job: job.key.startswith("order-1"),
    "worker:vm-2": lambda job: "vm-2" in job.worker,
    "arg:order_id=7": lambda job: job.task == close_order.name and job.args == [7],
    "arg:note=red": lambda job: job.task == close_order.name and job.kwargs.get("note") == "red",
    "meta:tenant=3": lambda job: job.meta.get("tenant") == 3,
    "customer:2": lambda job: job.meta.get("customer") == 2,
    "after:-1h": lambda job: job.run_at >= NOW - timedelta(hours=1),
    "before:+1h": lambda job: job.run_at < NOW + timedelta(hours=1),
    "is:asking": lambda job: job.state in ("scheduled", "running") and bool(job.asked),
    "fingerprint:none": lambda job: job.fingerprint == "",
    "red": lambda job: has_text(job, "red"),
    "order-1": lambda job: has_text(job, "order-1"),
    '"no answer"': lambda job: has_text(job, "no answer"),
    "17": lambda job: has_text(job, "17"),
}


def has_text(job: Job, text: str) -> bool:
    shown = [*job.args, *job.kwargs.values()] if job.task != "shop.gone" else []
    texts = [job.key, job.task, job.error, *(value for value in shown if isinstance(value, str))]
    return any(text in each.lower() for each in texts) or any(str(value) == text for value in shown)


def make_rows(dice: random.Random, count: int) -> None:
    rows = []
    for _ in range(count):
        task = dice.choice([close_order.name, close_order.name, ping.name, "shop.gone"])
        colour = {"note": dice.choice(["red", "infrared", "blue"])} if task != ping.name and dice.random() < 0.5 else {}
        rows.append(
            Job(
                queue=dice.choice(["orders", "default"]),
                task=task,
                args=[] if task == ping.name else [dice.randrange(20)],
                kwargs=colour,
                options={"meta": {"tenant": dice.randrange(5), "delayq.carried": {"customer": dice.randrange(5)}}},
                key=dice.choice(["", "", f"order-{dice.randrange(20)}"]),
                state=dice.choice(["scheduled", "failed", "succeeded", "running"]),
                attempts=dice.randrange(3),
                asked=dice.choice([None, 0, 2]),
                run_at=NOW + timedelta(minutes=dice.randrange(-180, 180), seconds=30),
                created_at=NOW,
                published=NOW,
                worker=dice.choice(["", "vm-1:12", "vm-2:99"]),
                error=dice.choice(["", "TimeoutError: No Answer", "HTTP 503", "Refused: 17"]),
                fingerprint=dice.choice(["", "a" * 12]),
            )
        )
    Job.objects.bulk_create(rows)


def make_search(dice: random.Random) -> tuple[str, Meant]:
    """Makes groups of one to three conditions, with their meaning. `not` applies to one condition. A job matches a group if all its
    conditions match, and the search if one group matches.
    """
    groups: list[tuple[str, list[Meant]]] = []
    for _ in range(dice.choice([1, 1, 2, 3])):
        typed, meant, used = [], list[Meant](), set[str]()
        for atom in dice.sample(list(ATOMS), dice.randrange(1, 4)):
            word = atom.lower().partition(":")[0]
            turned = dice.random() < 0.3
            if not turned and ":" in atom and word in used and word != "arg":
                continue  # a word may occur once in a group
            used |= set() if turned else {word}
            typed.append((dice.choice(["-", "not ", "NOT "]) if turned else "") + atom)
            meant.append((lambda job, holds=ATOMS[atom]: not holds(job)) if turned else ATOMS[atom])
        groups.append((dice.choice([" ", " AND "]).join(typed), meant))
    text = dice.choice([" OR ", " or "]).join(typed for typed, _ in groups)
    return text, lambda job: any(all(holds(job) for holds in meant) for _, meant in groups)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_search_finds_the_rows_that_another_reading_of_it_means(orders, seed):
    dice = random.Random(seed)
    make_rows(dice, 300)
    rows = list(Job.objects.all())
    for _ in range(60):
        text, meant = make_search(dice)
        view, queue = dice.choice(["", "", "failed"]), dice.choice(["", "", "orders"])
        wanted = Selection(text=text, view=view, queue=queue, at_ms=clock.to_ms(NOW))
        assert not wanted.search.complaints, (text, wanted.search.complaints)
        here = {job.pk for job in rows if meant(job) and view in ("", job.state) and queue in ("", job.queue)}
        page = keyset.page(wanted, Job.objects.all(), 400)
        assert {job.pk for job in page.jobs} == here, (text, view, queue)
        assert len(page.jobs) == len(here), (text, "a job stands there twice")
        looked = [job for job in wanted.rows(Job.objects.all()) if wanted.search.exact(job)]
        assert {job.pk for job in looked} == here, (text, view, queue, "as an operation sees it")


@pytest.mark.parametrize(
    "text", ["red OR state:failed error:503", "key:order-1* OR -task:close", "17", "queue:orders or queue:default"]
)
def test_pages_of_any_search_follow_one_another_and_lead_back(orders, text):
    make_rows(random.Random(7), 120)
    wanted, jobs = Selection(text=text, view="failed"), Job.objects.all()
    whole = [job.pk for job in keyset.page(wanted, jobs, 400).jobs]
    assert len(whole) > 8
    pages, after = [], ""
    while True:
        page = keyset.page(wanted, jobs, 4, after=after)
        pages.append(page)
        if not page.after:
            break
        after = page.after
    assert [job.pk for page in pages for job in page.jobs] == whole
    back = pages[-1]
    for page in reversed(pages[:-1]):
        back = keyset.page(wanted, jobs, 4, before=back.before)
        assert [job.pk for job in back.jobs] == [job.pk for job in page.jobs]
    assert not back.before


# free text


def test_a_text_alone_is_found_where_people_mean_it(orders):
    delayq.schedule(close_order, 5193, key="a", delay="1h")
    delayq.schedule(close_order, 2, note="Kunde5193@example.com", delay="1h")
    delayq.schedule(close_order, 3, note={"lines": [{"title": "坏主题"}]}, delay="1h")
    delayq.schedule(close_order, 4, key="bill-5193", delay="1h")
    delayq.schedule(close_order, 5, delay="1h")
    delayq.schedule(close_order, 51930, delay="1h")
    orders.fold()
    Job.objects.filter(args=[5]).update(error="desk.PartnerDown: answered 503")
    assert numbers("5193") == [2, 4, 5193]
    assert numbers("kunde5193@EXAMPLE.com") == [2]
    assert numbers("坏主题") == [3]
    assert numbers("partnerdown") == [5]
    assert numbers("5193 note OR partnerdown") == [5]
    assert numbers("5193 -bill") == [2, 5193]
    assert numbers('"answered 503"') == [5]


def test_a_text_alone_is_found_in_no_argument_that_is_masked_nor_of_a_task_that_is_gone(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    delayq.schedule(close_order, 1, note="secret", delay="1h")
    delayq.schedule(close_order, 77, key="seen", delay="1h")
    orders.fold()
    assert numbers("secret") == []
    assert numbers("***") == []
    assert numbers("-secret") == [1, 77]
    assert numbers("77") == [77]
    Job.objects.filter(key="seen").update(task="shop.gone")
    assert numbers("77") == []
    assert numbers("gone") == [77]


def test_errors_and_arguments_are_looked_through_in_the_first_rows_only_and_keys_in_all(orders, staff, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 4)
    for number in range(12):
        delayq.schedule(close_order, number, note="all", key="old" if number == 0 else "", delay="1h")
    orders.fold()
    assert numbers("all") == [7, 8, 9, 10, 11]  # the window, and its edge
    assert numbers("old") == [0]
    assert numbers("close_order") == list(range(12))
    assert numbers("all -state:failed") == numbers("all")
    text = staff().get(JOBS, {"q": "all"}).content.decode()
    assert "only in the first 10,000 jobs of this list" in text
    assert "Continue searching" not in text


def test_a_search_by_error_and_key_comes_to_all_rows_in_stretches(orders, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 4)
    jobs = orders.scheduled(12)
    Job.objects.filter(pk__in=[jobs[1].id, jobs[10].id]).update(error="HTTP 503")
    Job.objects.filter(pk=jobs[5].id).update(key="order-5")
    assert numbers("error:503 OR key:order-5") == [1, 5, 10]


def test_searches_that_are_offered_name_arguments_of_the_project_and_none_of_this_package(monkeypatch):
    def deliver(url: str, order_id: str) -> None: ...

    class Own(Task):
        own = True

    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    registry.add(make_task(Own, deliver, where="here", name="django_delayq.deliver"))
    offered = [each.text for each in selection.other_searches(Selection(text="nothing5555"))]
    assert "error:nothing5555" in offered
    assert "arg:url=nothing5555" not in offered
    assert any(text.startswith("arg:") for text in offered)


def test_a_window_is_read_through_in_two_queries(orders):
    assert keyset.STEP + keyset.MOST_AT_ONCE == keyset.WINDOW + 2
    orders.scheduled(30)
    ordered = Job.objects.order_by("-id")
    with CaptureQueriesContext(connection) as queries:
        assert len(list(keyset.through(ordered, ("-id",), 4, growing=True))) == 30
    assert len(queries) == 2


def test_only_what_may_name_a_task_that_is_not_here_is_looked_for_as_one(orders):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    Job.objects.update(task="shop.gone")
    for text, roads in (("5193", 2), ("order:123", 2), ("shop.gone", 3), ("close_order", 3)):
        assert len(Selection(text=text).roads) == roads, text
    assert len(everything("shop.gone")) == len(everything("gone")) == 1


# refused searches and their messages


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("OR", "OR must be between conditions."),
        ("state:failed OR", "OR must be between conditions."),
        ("OR state:failed", "OR must be between conditions."),
        ("a OR OR b", "OR must be between conditions."),
        ("state:failed not", "not must be followed by a condition."),
        ("not OR key:a", "not must be followed by a condition."),
        ("state:failed - key:a", "- must be followed by a condition."),
        ("-foo:bar state:failed", "Unknown search term foo:"),
        ('foo:"bar baz"', "Unknown search term foo:"),
        ("client:9 state:failed", 'To search for the text, put it in quotes: "client:9"'),
        ("state: failed", "state: needs a value"),
        ("meta:tenant", "enter a name and a value"),
        ("a " * 31, "at most 30 conditions"),
        ('error:"not found', 'error:"not: the quotation mark is not closed.'),
        ('state:failed "order 5', '"order: the quotation mark is not closed.'),
        ('arg:note="two words"', 'arg:note="two: the quotation mark is not closed.'),
    ],
)
def test_what_cannot_be_understood_is_said(text, said):
    read = search_parser.parse(text)
    assert said in " ".join(read.complaints)
    assert read.groups == ()


def test_a_quotation_mark_within_a_value_is_a_part_of_it():
    for text in ('key:5"x', 'arg:data={"a":"b"}', 'arg:note="closed"', '"closed" error:"it is"'):
        assert search_parser.parse(text).complaints == (), text


def test_of_too_many_conditions_none_is_read(orders, monkeypatch):
    asked = []
    monkeypatch.setattr(Inspector, "blocked", lambda *given: asked.append(given) or [])
    assert search_parser.parse("is:blocked OR " * 30 + "is:blocked").complaints == ("A search can have at most 30 conditions.",)
    assert asked == []
    assert search_parser.parse(" OR ".join(["is:blocked"] * 30)).complaints == ()
    assert len(asked) == 30


def test_quotes_make_a_text_of_any_word(orders):
    for number, key in enumerate(("not", "or", "-1", "state:failed")):
        delayq.schedule(close_order, number, key=key, delay="1h")
    orders.fold()
    assert numbers('"not"') == [0]
    assert numbers('"-1"') == [2]
    assert numbers('"state:failed"') == [3]
    assert numbers('key:"or"') == [1]


def test_a_word_that_is_none_is_looked_for_as_a_text_and_said(orders, staff):
    text = staff().get(JOBS, {"q": "foo:bar"}).content.decode()
    assert "No job matches." in text
    assert "Unknown search term foo:. Available terms: id:, key:," in text
    assert "Did you mean state:?" in staff().get(JOBS, {"q": "status:failed"}).content.decode()


@pytest.mark.parametrize("key", ["order:5", "post:5", "https://a.example/5", "Client:5"])
def test_a_key_of_any_form_is_found_as_it_is(orders, key):
    delayq.schedule(close_order, 1, key=key, delay="1h")
    orders.fold()
    assert numbers(key) == [1]
    assert numbers(f'"{key}"') == [1]


def links(response) -> list[str]:
    return [str(words) for words, _ in response.context["cl"].others]


def test_where_nothing_is_found_other_searches_are_links_that_work(orders, staff):
    delayq.schedule(close_order, 5193, delay="1h")
    orders.fold()
    client = staff()
    empty = client.get(JOBS, {"q": "5193", "state": "failed"})
    assert "The search included ids, keys, task names, errors" in empty.content.decode()
    assert {"state:failed error:5193", "state:failed arg:order_id=5193", "5193"} <= set(links(empty))
    for words, address in empty.context["cl"].others:
        answer = client.get(JOBS + address)
        assert answer.status_code == 200
        assert len(answer.context["cl"].result_list) == (words == "5193"), words
    assert "error:坏主题" in links(client.get(JOBS, {"q": "坏主题"}))
    assert {'error:"no answer"', "error:timeout"} <= set(links(client.get(JOBS, {"q": '"no answer"'}))) | {"error:timeout"}
    assert links(client.get(JOBS, {"q": "key:close"}))[0] == "key:close*"
    assert links(client.get(JOBS, {"q": "customer:5"})) == ["key:customer:5*"]
    assert links(client.get(JOBS, {"q": "stat:failed"})) == []


def test_it_is_said_why_an_argument_finds_nothing(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["note"]}
    client = staff()
    for text, said in {
        "arg:note=x": "The argument note is masked, so you cannot search for it.",
        "arg:order_idd=x": "No task has an argument named order_idd. Did you mean order_id?",
    }.items():
        assert said in client.get(JOBS, {"q": text}).content.decode()
    assert "masked: no job" not in client.get(JOBS, {"q": "arg:order_id=1"}).content.decode()


# operations


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("state:scheduled -refund", "Remove -refund"),
        ("-arg:order_id=1", "Remove -arg:order_id=1"),
    ],
)
def test_nothing_is_started_by_what_excludes_jobs_by_their_arguments(orders, staff, run, text, said):
    orders.scheduled(2)
    client, address = staff(), f"{OPERATIONS}start/cancel/?q={text}"
    assert said in client.get(address).content.decode()
    assert client.post(address, {}).status_code == 400
    refused = run("cancel", f"--search={text}")
    assert (refused.code, said in refused.error) == (2, True)
    assert Job.objects.filter(state="scheduled").count() == 2


def test_an_operation_is_about_the_jobs_that_the_list_shows(orders, staff):
    make_rows(random.Random(3), 60)
    orders.scheduled(4, key="many")
    shown = {job.pk for job in everything("-task:ping key:many OR state:scheduled -queue:orders")}
    operation = begin("cancel", selection={"text": "-task:ping key:many OR state:scheduled -queue:orders"})
    work()
    operation.refresh_from_db()
    assert operation.seen == len(shown)
    assert operation.stage == "finished"


def with_notes(orders, *notes: str) -> list[delayq.Job]:
    found = [delayq.schedule(close_order, number, note=note, delay="1h") for number, note in enumerate(notes)]
    orders.fold()
    return found


def test_a_text_alone_starts_an_operation_on_the_jobs_that_match_at_the_confirmation(orders, staff):
    ours, other = with_notes(orders, "kunde5", "kunde6")
    orders.ended("ack", key="kunde5")  # has ended, so a cancel cannot change it
    client, address = staff(), f"{OPERATIONS}start/cancel/?q=kunde5"
    preview = client.get(address)
    assert (preview.context["count"], preview.context["complaints"]) == (1, [])
    assert "Only these jobs are changed." in preview.content.decode()
    shown = client.post(address, {"preview": preview.context["preview"]}, follow=True)
    [operation] = Operation.objects.all()
    assert operation.frozen == [ours.short_id]
    assert "the 1 job that matched when the operation was confirmed" in shown.content.decode()
    assert f"{JOBS}{ours.id}/change/" in shown.content.decode()
    [late] = with_notes(orders, "kunde5")
    work()
    operation.refresh_from_db()
    assert (operation.expected, operation.counts, operation.stage) == (1, {"done": 1}, "finished")
    orders.fold()
    assert {job.pk for job in Job.objects.filter(state="scheduled")} == {other.id, late.id}


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_only_jobs_that_the_action_can_change_are_searched(orders, staff, run, monkeypatch, verb):
    monkeypatch.setattr(keyset, "WINDOW", 3)
    failed = [orders.ended("fail", key=f"kunde5:{number}").id for number in range(2)]
    waiting = [orders.scheduled(key=f"kunde5:{number}")[0].id for number in range(2, 4)]
    for number in range(4):
        orders.ended("ack", key=f"kunde5:ended{number}")
    client = staff()
    client.post(f"{OPERATIONS}start/{verb}/?q=kunde5", {})
    meant = {"cancel": waiting, "requeue": failed}[verb]
    assert Operation.objects.get().frozen == sorted(map(ids.short, meant))
    assert run(verb, "--search=kunde5", "--json", "--yes").code == 0
    orders.fold()
    assert (
        set(
            Job.objects.filter(state="cancelled" if verb == "cancel" else "scheduled", key__startswith="kunde5").values_list(
                "pk", flat=True
            )
        )
        == {
            "cancel": {*waiting},
            "requeue": {*failed, *waiting},
        }[verb]
    )


def test_a_text_in_too_many_jobs_is_refused_and_exact_searches_are_offered(orders, staff, run, monkeypatch):
    with_notes(orders, "kunde5", "kunde5", "other")
    orders.scheduled(key="kunde5:1")
    monkeypatch.setattr(keyset, "WINDOW", 4)
    client, address = staff(), f"{OPERATIONS}start/cancel/?q=state:scheduled+kunde5"
    assert client.get(address).context["count"] == 3  # all four can be searched
    orders.scheduled()
    refused = client.get(address)
    text = refused.content.decode()
    assert "To find kunde5, more than 10,000 jobs would have to be searched." in text
    assert '<input type="submit"' not in text
    assert client.post(address, {}).status_code == 400
    assert not Operation.objects.exists()
    offered = {words: found for words, _, found in refused.context["others"]}
    assert offered == {
        "state:scheduled arg:note=kunde5 OR state:scheduled key:kunde5*": 3,
        "state:scheduled arg:note=kunde5": 2,
        "state:scheduled key:kunde5*": 1,
    }
    for _, link, _ in refused.context["others"]:
        assert client.get(link).context["complaints"] == []
    said = run("cancel", "--search=state:scheduled kunde5")
    assert (said.code, "Try instead: state:scheduled arg:note=kunde5 OR" in said.error) == (2, True)
    assert Job.objects.filter(state="scheduled").count() == 5


def test_a_preview_of_any_text_needs_few_queries(orders, staff, monkeypatch):
    make_rows(random.Random(1), 120)
    client = staff()
    for window in (100, 10_000):
        monkeypatch.setattr(keyset, "WINDOW", window)
        for text in ("red", "state:failed red", "red OR key:order-1*", "arg:note=red", "customer:2"):
            with CaptureQueriesContext(connection) as queries:
                client.get(f"{OPERATIONS}start/requeue/", {"q": text})
            assert len(queries) <= 12, (text, [query["sql"] for query in queries])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_frozen_ids_are_those_of_the_rows_that_another_reading_of_the_search_means(orders, seed):
    dice = random.Random(seed)
    make_rows(dice, 300)
    rows = list(Job.objects.all())
    for _ in range(40):
        text, meant = make_search(dice)
        view, queue = dice.choice(["", "failed"]), dice.choice(["", "orders"])
        wanted = Selection(text=text, view=view, queue=queue, at_ms=clock.to_ms(NOW))
        states = {wanted.shown_view} if wanted.shown_view else {"failed", "scheduled"}
        here = [job for job in rows if meant(job) and queue in ("", job.queue) and any(in_state(job, state) for state in states)]
        assert keyset.all_ids(wanted, Job.objects.all(), states) == sorted(job.pk for job in here), (text, view, queue)


def in_state(job: Job, state: str) -> bool:
    return ATOMS[f"state:{state}"](job) if state in ("retrying", "due") else job.state == state


def test_a_view_stands_before_each_group_where_all_is_told_as_one_search():
    wanted = Selection(view="failed", text="key:a OR -task:b c")
    assert wanted.words == "state:failed key:a OR state:failed -task:b c"
    assert selection.other_searches(Selection(text="state:failed key:a OR state:failed c"))[0].words == "key:a OR c"


def test_no_search_needs_many_queries(orders, staff, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 5)
    monkeypatch.setattr(keyset, "WINDOW", 100)
    monkeypatch.setattr(keyset, "STEP", 10)
    monkeypatch.setattr(keyset, "MOST_AT_ONCE", 91)
    make_rows(random.Random(1), 120)
    client = staff()
    for text in ("5193 OR key:order-1* OR task:ping error:503", "a b c OR d e -f OR g", "-arg:note=red", "nothing"):
        with CaptureQueriesContext(connection) as queries:
            client.get(JOBS, {"q": text})
        assert len(queries) <= 12, (text, len(queries))


AT = datetime(2026, 5, 1, 23, 30, tzinfo=UTC)  # in Berlin already 2 May, 01:30


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-05-01", datetime(2026, 4, 30, 22, tzinfo=UTC)),
        ("2026-05-01 18:30", datetime(2026, 5, 1, 16, 30, tzinfo=UTC)),
        ("2026-05-01T18:30:05", datetime(2026, 5, 1, 16, 30, 5, tzinfo=UTC)),
        ("2026-05-01T18:30Z", datetime(2026, 5, 1, 18, 30, tzinfo=UTC)),
        ("2026-05-01T18:30+05:00", datetime(2026, 5, 1, 13, 30, tzinfo=UTC)),
        ("10:00", datetime(2026, 5, 2, 8, tzinfo=UTC)),
        ("9:05", datetime(2026, 5, 2, 7, 5, tzinfo=UTC)),
        ("9:05:06", datetime(2026, 5, 2, 7, 5, 6, tzinfo=UTC)),
        ("today", datetime(2026, 5, 1, 22, tzinfo=UTC)),
        ("yesterday", datetime(2026, 4, 30, 22, tzinfo=UTC)),
        ("-2h", datetime(2026, 5, 1, 21, 30, tzinfo=UTC)),
        ("+10m", datetime(2026, 5, 1, 23, 40, tzinfo=UTC)),
    ],
)
def test_a_moment_is_in_the_current_time_zone(text, moment):
    with timezone.override("Europe/Berlin"):
        assert parse_moment(text, AT) == moment


@pytest.mark.parametrize(
    "text", ["", "soon", "monday", "today 18:00", "24:00", "10:60", "1:2", "2026-13-45", "-2", "-soon", "+", "-9999999999d", "٣:00"]
)
def test_anything_else_is_an_error(text):
    with pytest.raises((ValueError, OverflowError)):
        parse_moment(text, AT)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_moment_that_no_database_can_hold_is_an_error(text):
    with pytest.raises((ValueError, OverflowError)):
        parse_moment(text, AT)
