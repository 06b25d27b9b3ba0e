"""Actions of people against each other and against the console: hostile jobs, two people at one job, a user without permission, a
user without a mouse.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import expect, shoot, sideways
from tests.browser.pages import (
    JOBS,
    OPERATIONS,
    QUEUES,
    WORKERS,
    job_row,
    look_until,
    moment,
    open_job,
    post_by_hand,
    search_jobs,
    told,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'

ROWS = """
import json
from datetime import timedelta
from django_delayq import clock
from django_delayq.models import Attempt, Event, Job, Operation
hostile = {hostile!r}
frame = f'  File "/srv/{{hostile}}.py", line 1, in {{hostile}}\\n    {{hostile}}\\n'
trace = f"Traceback (most recent call last):\\n{{frame}}{{hostile}}: {{hostile}}"
then, found = clock.now() - timedelta(minutes=3), {{}}
for name, queue, task, state in (
    ("failed", "orders", hostile, "failed"), ("elsewhere", hostile, hostile, "failed"), ("retries", "orders", hostile, "scheduled"),
    ("edited", "orders", "shop.tasks.close_order", "failed"),
):
    job = Job.objects.create(
        queue=queue, task=task, key=f"{{name}} {{hostile}}", state=state, run_at=then, created_at=then, started_at=then,
        finished_at=then if state == "failed" else None, attempts=1, max_attempts=2, worker=hostile, error=hostile,
        fingerprint=hostile[:Job._meta.get_field("fingerprint").max_length], args=[hostile],
        kwargs={{}} if name == "edited" else {{hostile: {{hostile: hostile}}}},
        options={{"meta": {{hostile: hostile}}}}, result=hostile, published=then,
    )
    found[name] = str(job.pk)
    Attempt.objects.create(
        job_id=job.pk, number=1, fence="1", started_at=then, finished_at=then, worker=hostile, error_class=hostile,
        outcome="failed" if state == "failed" else "retried", message=hostile, traceback=trace,
    )
    for number, (kind, detail) in enumerate((
        ("requeued", {{hostile: hostile}}), ("edited", {{"args": [hostile], "kwargs": {{hostile: hostile}}}}), (hostile[:20], None),
    )):
        Event.objects.create(
            job_id=job.pk, queue=queue, at=then, kind=kind, actor=hostile, reason=hostile, detail=detail,
            stream_id=f"hostile-{{name}}", item=number,
        )
operation = Operation.objects.create(
    verb="cancel", selection={{"text": hostile}}, options={{hostile: hostile}}, stage="paused", actor=hostile, reason=hostile,
    counts={{hostile: 3}}, expected=7, seen=3,
)
print(json.dumps({{**found, "operation": str(operation.pk)}}))
"""

# Claims as a worker of that name and reports its progress. The lease outlives the test.
RUNS = """
import django_delayq as delayq
from django_delayq import conf
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.producer.stores import stores
from shop.tasks import close_order
hostile = {hostile!r}
job = delayq.schedule(close_order, 1, key="running", queue="partners")
store = QueueStore(stores.link, prefix=conf.get().prefix, queue="partners")
[run] = store.claim(hostile, "n1", want=1, lease_ms=3_600_000, max_crashes=3).jobs
store.extend([(run.id, run.fence)], worker=hostile, lease_ms=3_600_000, progress={{run.id: hostile}})
print(job.id)
"""

SCHEDULE = """
import django_delayq as delayq
from shop.tasks import close_order
for key in {keys!r}:
    delayq.schedule(close_order, 987650000, delay={delay!r}, key=key, max_attempts=1)
"""

STEERED = """
from django_delayq.models import Operation
print(Operation.objects.create(verb="cancel", selection={"text": "key:nothing"}, stage="paused", actor="admin:admin").pk)
"""


def change(id: str) -> str:
    return f"{JOBS}{id}/change/"


def schedule(example, *keys: str, delay: str = "1d") -> None:
    """Schedules jobs that would fail, because the order does not exist."""
    example.run(SCHEDULE.format(keys=keys, delay=delay))


def state(page: Page) -> Locator:
    return page.get_by_role("heading", level=1).locator(".delayq-state")


def refresh_never(page: Page) -> None:
    page.locator("#delayq-every").select_option("0")
    page.locator("#delayq-every").blur()


def press(page: Page, button: str) -> None:
    page.get_by_role("button", name=button, exact=True).click()


def is_text(page: Page) -> None:
    """Checks that the page shows the hostile text as text, and that it did nothing. The policy would report a forbidden script."""
    page.evaluate("for (const node of document.querySelectorAll('#content details')) node.open = true")
    assert HOSTILE in page.locator("#content").inner_text()
    assert not re.fullmatch("[12]", page.title())
    expect(page.locator("img[src=x], #content script, [onerror]")).to_have_count(0)


# hostile


@pytest.fixture(scope="module")
def hostile(example) -> dict[str, str]:
    return json.loads(example.run(ROWS.format(hostile=HOSTILE)).splitlines()[-1])


def test_a_job_that_is_hostile_in_every_field_shows_as_text_on_every_page(admin, hostile):
    addresses = [
        f"{JOBS}?state=failed",
        f"{JOBS}?state=retrying",
        f"{JOBS}failures/",
        f"{OPERATIONS}start/requeue/?state=failed",
    ]
    addresses += [f"{OPERATIONS}start/requeue/?state=failed&task=%3Cimg%20src=x%3E&q=%3Cscript%3E"]
    addresses += [change(hostile[name]) for name in ("failed", "elsewhere", "retries", "edited")]
    addresses += [f"{JOBS}{hostile['edited']}/edit/", f"{JOBS}{hostile['failed']}/edit/"]
    addresses += [OPERATIONS, f"{OPERATIONS}{hostile['operation']}/change/"]
    for address in addresses:
        assert admin.goto(address).status == 200
        if "%3C" in address or "/edit/" in address:  # there it stands in the address or in a field
            expect(admin.locator("img[src=x], #content script, [onerror]")).to_have_count(0)
            assert not re.fullmatch("[12]", admin.title())
        else:
            is_text(admin)
    shoot(admin, "people-hostile-operation")


def test_what_is_hostile_is_text_where_one_is_asked_and_where_changes_are_shown(admin, hostile):
    admin.goto(f"{JOBS}?state=failed")
    admin.locator("#action-toggle").check()
    admin.locator("select[name=action]").select_option("requeue")
    admin.locator("button[name=index]").click()
    expect(admin.get_by_text("Requeue these jobs")).to_be_visible()
    is_text(admin)
    admin.goto(f"{JOBS}{hostile['edited']}/edit/")
    admin.get_by_label("About order_id").select_option("number")  # as its annotation says; it is a text
    admin.get_by_label("order_id", exact=True).fill("2")
    press(admin, "Review changes")
    expect(admin.locator(".delayq-removed").first).to_contain_text("onerror")
    expect(admin.locator("img[src=x], #content script, [onerror]")).to_have_count(0)


def test_operations_are_cards_on_a_phone(tabs, hostile):
    phone = tabs.open("admin", narrow=True)
    phone.goto(OPERATIONS)
    shoot(phone, "people-operations-narrow")
    row = phone.locator("#result_list tbody tr").first
    assert row.evaluate("(node) => getComputedStyle(node).display") == "block"
    for column in row.locator("th, td").all():
        expect(column).to_be_in_viewport()
    assert sideways(phone) == 0


# two people


def test_of_two_who_requeue_one_job_the_second_is_told_that_nothing_was_done(tabs, admin, example):
    schedule(example, "twice", delay="0s")
    open_job(admin, "twice")
    look_until(admin, admin.get_by_role("button", name="Requeue"))
    other = tabs.open("desk")
    other.goto(admin.url)
    refresh_never(other)
    expect(other.get_by_role("button", name="Requeue")).to_be_visible()
    example.run("import django_delayq; django_delayq.pause('orders')")
    try:
        press(admin, "Requeue")
        expect(told(admin)).to_have_text("1 requeued.")
        press(other, "Requeue")
        expect(told(other)).to_contain_text("1 not requeued")
        look_until(admin, moment(admin, "requeued"))
        expect(moment(admin, "requeued")).to_have_count(1)
    finally:
        example.run("import django_delayq; django_delayq.resume('orders')")
    look_until(admin, moment(admin, re.compile("attempt . failed")).nth(1))
    expect(moment(admin, re.compile("attempt . failed"))).to_have_count(2)
    other.locator("#delayq-every").select_option("5")


def test_of_two_who_act_differently_the_second_is_told_what_the_first_did(tabs, admin, example):
    schedule(example, "both")
    open_job(admin, "both")
    other = tabs.open("desk")
    other.goto(admin.url)
    refresh_never(other)
    press(admin, "Cancel")
    press(admin, "Cancel 1 job")
    expect(told(admin)).to_have_text("1 cancelled.")
    other.locator("#reschedule > summary").click()
    other.get_by_label("Delay from now").fill("2d")
    press(other, "Reschedule")
    expect(told(other)).to_have_text("1 already finished.")
    look_until(other, moment(other, "cancelled"))
    expect(state(other)).to_have_text("cancelled")
    expect(moment(other, "rescheduled")).to_have_count(0)


# users without permission


def test_who_may_not_steer_operations_sees_no_button_for_it_and_is_refused(tabs, admin, example):
    id = example.run(STEERED).splitlines()[-1]
    desk, address = tabs.open("desk"), f"{OPERATIONS}{id}/"
    desk.goto(f"{address}change/")
    expect(state(desk)).to_have_text("paused")
    expect(desk.locator("#content-main").get_by_role("button")).to_have_count(0)
    for act in ("pause", "resume", "cancel"):
        assert post_by_hand(desk, f"{address}{act}/").status == 403
    desk.reload()
    expect(state(desk)).to_have_text("paused")
    admin.goto(f"{address}change/")
    press(admin, "Cancel the rest")
    expect(state(admin)).to_have_text("cancelled")


def test_who_may_not_stop_workers_may_still_quiet_them(tabs, example):
    desk = tabs.open("desk")
    desk.goto(WORKERS)
    row = desk.locator("#workers tbody tr").filter(has_text="default, orders, partners").last
    row.locator("details.delayq-ask summary").click()
    expect(row.get_by_role("button", name="Quiet")).to_be_visible()
    expect(row.get_by_role("button", name="Stop")).to_have_count(0)
    address = row.locator("form").get_attribute("action")
    assert post_by_hand(desk, address.replace("/quiet/", "/stop/")).status == 403
    desk.reload()
    expect(desk.locator("#workers")).not_to_contain_text("asked to stop")


def test_who_may_not_see_operations_is_not_led_to_them(tabs, example):
    viewer = tabs.open("viewer")
    assert viewer.request.get(OPERATIONS).status == 403
    assert viewer.request.get(f"{OPERATIONS}{example.run(STEERED).splitlines()[-1]}/change/").status == 403
    viewer.goto(QUEUES)
    expect(viewer.locator(f"a[href*='{OPERATIONS}']")).to_have_count(0)


# without a mouse


def tab_to(page: Page, wanted: Locator, key: str = "Tab") -> None:
    """Presses Tab until that element has the focus."""
    expect(wanted).to_be_visible()
    for _ in range(150):
        if wanted.evaluate("(node) => node === document.activeElement"):
            return
        page.keyboard.press(key)
    raise AssertionError(f"the keyboard does not lead to {wanted}")


def test_a_job_is_rescheduled_cancelled_and_requeued_with_the_keyboard_alone(admin, example):
    schedule(example, "by hand")
    open_job(admin, "by hand")
    tab_to(admin, admin.locator("#reschedule > summary"))
    admin.keyboard.press("Enter")
    tab_to(admin, admin.get_by_label("Delay from now"))
    admin.keyboard.type("2d")
    admin.keyboard.press("Enter")
    expect(told(admin)).to_have_text("1 rescheduled.")
    tab_to(admin, admin.locator("form.delayq-act").first.get_by_label("Reason"))
    admin.keyboard.type("no mouse")
    tab_to(admin, admin.get_by_role("button", name="Cancel"))
    admin.keyboard.press("Enter")
    expect(admin.get_by_text("Cancel this job?")).to_be_visible()
    tab_to(admin, admin.get_by_role("button", name="Cancel 1 job", exact=True))
    admin.keyboard.press("Enter")
    expect(told(admin)).to_have_text("1 cancelled.")
    expect(state(admin)).to_have_text("cancelled")  # the page refreshes itself
    tab_to(admin, admin.get_by_role("button", name="Requeue"))
    admin.keyboard.press("Space")
    expect(told(admin)).to_have_text("1 requeued.")
    look_until(admin, moment(admin, "cancelled").get_by_text("no mouse"))


def test_jobs_are_ticked_and_cancelled_in_the_list_with_the_keyboard_alone(admin, example):
    schedule(example, "tick:1", "tick:2", "tick:3")
    search_jobs(admin, "key:tick:*")
    rows = admin.locator("#result_list tbody tr")
    expect(rows).to_have_count(3)
    for key in ("tick:3", "tick:1"):
        box = job_row(admin, key).get_by_role("checkbox")
        tab_to(admin, box)
        admin.keyboard.press("Space")
        expect(box).to_be_checked()
    actions = admin.locator("select[name=action]")
    tab_to(admin, actions)
    admin.keyboard.type("Cancel")
    expect(actions).to_have_value("cancel")
    tab_to(admin, admin.locator("button[name=index]"))
    admin.keyboard.press("Enter")
    expect(admin.get_by_text("Cancel these jobs?")).to_be_visible()
    tab_to(admin, admin.get_by_label("Reason"))
    admin.keyboard.type("by hand")
    admin.keyboard.press("Enter")
    expect(told(admin)).to_have_text("2 cancelled.")


def test_arguments_are_edited_and_the_job_requeued_with_the_keyboard_alone(tabs, admin, example):
    schedule(example, "digit", delay="0s")
    open_job(admin, "digit")
    edit = admin.get_by_role("link", name="Edit and requeue")
    look_until(admin, edit)
    tab_to(admin, edit)
    admin.keyboard.press("Enter")
    arguments = admin.get_by_label("order_id", exact=True)
    tab_to(admin, arguments)
    admin.keyboard.press("Control+A")
    admin.keyboard.type("x987650000")
    tab_to(admin, admin.get_by_role("button", name="Review changes"))
    admin.keyboard.press("Enter")
    expect(admin.locator(".errorlist").first).to_contain_text("Enter a whole number")
    tabs.watch(admin).forgive("400 (Bad Request)")
    tab_to(admin, arguments)
    admin.keyboard.press("End")
    admin.keyboard.type("1")
    admin.keyboard.press("Home")
    admin.keyboard.press("Delete")
    tab_to(admin, admin.get_by_label("Reason"))
    admin.keyboard.type("a digit was wrong")
    admin.keyboard.press("Enter")
    expect(admin.locator(".delayq-added")).to_contain_text("9876500001")
    tab_to(admin, admin.locator(".delayq-wide"))  # the arrow keys scroll a long text
    tab_to(admin, admin.get_by_role("button", name="Requeue with these arguments"))
    admin.keyboard.press("Space")
    expect(told(admin)).to_have_text("The job was requeued with the new arguments.")
    look_until(admin, moment(admin, "edited").get_by_text("a digit was wrong"))


def test_an_operation_is_started_steered_and_finished_with_the_keyboard_alone(admin, example):
    schedule(example, *(f"bulk:{number}" for number in range(60)))
    admin.goto(JOBS)
    tab_to(admin, admin.locator("#searchbar"))
    admin.keyboard.type("key:bulk:* state:scheduled")
    admin.keyboard.press("Enter")
    expect(admin.locator("#result_list tbody tr")).to_have_count(50)
    tab_to(admin, admin.locator("#delayq-all").get_by_role("link", name="Cancel"))
    admin.keyboard.press("Enter")
    expect(admin.locator(".delayq-meant")).to_contain_text("60 matching jobs")
    tab_to(admin, admin.get_by_label("Spread over"))
    admin.keyboard.type("1h")
    tab_to(admin, admin.get_by_label("Reason"))
    admin.keyboard.type("no mouse")
    admin.keyboard.press("Enter")
    expect(told(admin)).to_contain_text("The operation has started.")
    for button, stage in (("Pause", "paused"), ("Resume", "running"), ("Cancel the rest", "cancelled")):
        tab_to(admin, admin.get_by_role("button", name=button, exact=True))
        admin.keyboard.press("Enter")
        expect(state(admin)).to_have_text(stage)

    search_jobs(admin, "key:bulk:* state:scheduled")
    tab_to(admin, admin.locator("#action-toggle"))
    admin.keyboard.press("Space")
    tab_to(admin, admin.get_by_role("button", name="Select all"), "Shift+Tab")  # of every page
    admin.keyboard.press("Enter")
    tab_to(admin, admin.locator("select[name=action]"), "Shift+Tab")
    admin.keyboard.type("Cancel")
    tab_to(admin, admin.locator("button[name=index]"))
    admin.keyboard.press("Enter")
    tab_to(admin, admin.get_by_role("button", name=re.compile(r"^Cancel \d+ jobs$")))
    admin.keyboard.press("Space")
    expect(state(admin)).to_have_text("finished")
    search_jobs(admin, "key:bulk:* state:cancelled")
    expect(admin.locator(".small.quiet")).to_contain_text("60 results")


# without a worker for a while


def test_a_badge_says_how_far_the_mirror_is_behind_until_it_has_caught_up(admin, example):
    example.worker.terminate()
    schedule(example, "unseen")
    admin.goto(JOBS)
    badge = admin.locator(".delayq-lag")
    expect(badge).to_have_text(re.compile(r"^mirror of orders is \d+ s late"))
    shoot(admin, "people-lag")
    example.worker.start()
    expect(badge).to_have_count(0)


def test_what_a_running_job_says_of_itself_shows_as_text(example, admin):
    example.worker.terminate()
    id = example.run(RUNS.format(hostile=HOSTILE)).splitlines()[-1]
    example.worker.start()
    admin.goto(change(id))
    expect(admin.locator(".delayq-facts").first.get_by_text(HOSTILE).first).to_be_visible()
    is_text(admin)
    look_until(admin, moment(admin, "attempt 1 running"))
    is_text(admin)
