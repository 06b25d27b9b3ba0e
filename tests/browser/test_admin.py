"""Jobs, queues and workers in the admin, as a person uses them. Orders stay open for an hour here, so that nothing happens without a
request.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.browser.chromium import expect, shoot, sideways
from tests.browser.conftest import log_in
from tests.browser.pages import (
    JOBS,
    QUEUES,
    WORKERS,
    close_key,
    depth,
    job_row,
    look_until,
    moment,
    open_job,
    order_state,
    pause,
    place_order,
    post_by_hand,
    queue_row,
    resume,
    search_jobs,
    told,
)

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
POLICY = "default-src 'self'"
TASK = "shop.tasks.close_order"
JOB_ACTS = ("cancel", "run_now", "reschedule", "requeue")
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'

SCHEDULE = """
import json
import django_delayq as delayq
from shop.tasks import close_order
hostile = {hostile!r}
jobs = {{
    # there is no such order: the first attempt fails, and there is no other
    "failed": delayq.schedule(close_order, 987654321, max_attempts=1, key="hopeless", meta={{"note": hostile}}),
    "waiting": delayq.schedule(close_order, 987654322, delay="1d", key="waiting"),
    "hostile": delayq.schedule(close_order, 987654323, delay="1d", key=hostile, meta={{hostile: [hostile]}}),
}}
print(json.dumps({{name: str(job.id) for name, job in jobs.items()}}))
"""

PAY_OUTS = """
import django_delayq as delayq
from shop.payments import pay_out
for _ in range(3):
    print(delayq.schedule(pay_out, "north", "boats").id)
"""


@pytest.fixture(scope="module")
def jobs(example) -> dict[str, str]:
    """Ids of jobs: one failed, one waiting, and one whose key and meta would be markup if a page did not escape them."""
    return json.loads(example.run(SCHEDULE.format(hostile=HOSTILE)))


def act(page, verb: str, reason: str) -> None:
    """Presses a button of the job page, with a reason."""
    if verb == "Reschedule":
        unfold(page)
    form = page.locator("form.delayq-act").filter(has=page.get_by_role("button", name=verb, exact=True))
    form.get_by_label("Reason").fill(reason)
    form.get_by_role("button", name=verb, exact=True).click()
    if verb in ("Cancel", "Run now"):  # these ask first
        page.locator(".submit-row input").click()


def unfold(page) -> None:
    """Opens the form for another date, unless it is open."""
    if page.locator("details#reschedule:not([open])").count():
        page.locator("details#reschedule > summary").click()


def buttons(page) -> list[str]:
    return page.locator("#content-main").get_by_role("button").all_inner_texts()


def test_a_person_logs_in_and_finds_jobs_queues_and_workers(page):
    log_in(page, "admin")
    for name, heading in {"Jobs": "Jobs", "Queues": "Queues", "Workers": "Workers"}.items():
        page.goto("/admin/")
        page.locator("#content-main").get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()
        shoot(page, f"admin-{name.lower()}")


def test_run_now_closes_an_order_before_its_time(tabs, admin):
    shop = tabs.open()
    order = place_order(shop)
    open_job(admin, close_key(order))
    assert buttons(admin) == ["Cancel", "Run now"]
    expect(admin.locator("#reschedule > summary")).to_have_text("Reschedule …")
    act(admin, "Run now", "the shelves are empty")
    expect(told(admin)).to_have_text("1 made due now.")
    expect(order_state(shop)).to_have_text("closed")

    look_until(admin, moment(admin, "attempt 1 succeeded"))
    expect(moment(admin, "run now")).to_contain_text(["the shelves are empty"])
    expect(moment(admin, "run now").get_by_role("cell", name="admin:admin")).to_be_visible()
    admin.reload()  # the page before may have read the job before the mirror recorded its end, and the attempt after that
    assert buttons(admin) == []
    shoot(admin, "admin-job-succeeded")


def test_a_failed_job_is_requeued_and_its_page_tells_the_whole_story(admin, jobs):
    open_job(admin, "hopeless")
    look_until(admin, moment(admin, "attempt 1 failed"))
    expect(moment(admin, "attempt 1 failed")).to_contain_text("Order matching query does not exist")
    trace = admin.locator("details.delayq-trace").first
    trace.locator("summary").first.click()
    expect(trace.locator(".delayq-frames")).to_contain_text("shop/tasks.py")
    expect(trace.locator(".delayq-whole")).to_be_hidden()
    admin.context.grant_permissions(["clipboard-read", "clipboard-write"])
    trace.get_by_role("button", name="Copy the traceback").click()
    expect(trace.get_by_role("button", name="Copied")).to_be_visible()
    assert "DoesNotExist" in admin.evaluate("navigator.clipboard.readText()")
    trace.get_by_text("Full text").click()
    expect(trace.locator(".delayq-whole")).to_contain_text("DoesNotExist")
    look_until(admin, admin.get_by_role("button", name="Requeue"))
    assert buttons(admin)[0] == "Requeue"

    act(admin, "Requeue", "the order may be there now")
    expect(told(admin)).to_have_text("1 requeued.")
    look_until(admin, moment(admin, re.compile("attempt . failed")).nth(1))
    expect(moment(admin, "requeued")).to_contain_text("the order may be there now")
    expect(moment(admin, "requeued").get_by_role("cell", name="admin:admin")).to_be_visible()
    shoot(admin, "admin-job-failed")


def test_reschedule_takes_a_delay_and_says_what_is_wrong_with_a_bad_one(tabs, admin):
    shop = tabs.open()
    order = place_order(shop)
    open_job(admin, close_key(order))
    unfold(admin)
    admin.get_by_label("Delay from now").fill("soon")
    admin.get_by_role("button", name="Reschedule").click()
    expect(admin.locator(".errorlist")).to_contain_text("soon")
    expect(admin.get_by_label("Delay from now")).to_have_value("soon")
    tabs.watch(admin).forgive("400 (Bad Request)")
    shoot(admin, "admin-reschedule-refused")

    admin.get_by_label("Delay from now").fill("1s")
    act(admin, "Reschedule", "a last chance")
    expect(told(admin)).to_have_text("1 rescheduled.")
    expect(order_state(shop)).to_have_text("closed")
    look_until(admin, moment(admin, "rescheduled").get_by_text("a last chance"))
    look_until(admin, moment(admin, "attempt 1 succeeded"))


def test_a_paused_queue_holds_its_jobs_until_it_is_resumed(tabs, admin):
    shop = tabs.open()
    pause(admin, "orders", "stock taking")
    expect(told(admin)).to_contain_text("The queue orders is paused.")
    expect(queue_row(admin, "orders")).to_contain_text("by admin:admin stock taking")

    order = place_order(shop)
    admin.goto(QUEUES)
    waiting = depth(admin, "orders", "Scheduled").inner_text()
    open_job(admin, close_key(order))
    act(admin, "Run now", "")
    expect(told(admin)).to_have_text("1 made due now.")
    admin.goto(QUEUES)
    expect(depth(admin, "orders", "Due")).to_have_text("1")
    expect(depth(admin, "orders", "Scheduled")).to_have_text(waiting)  # due is a part of it
    expect(depth(admin, "orders", "Workers")).to_have_text("1")
    shoot(admin, "admin-queue-paused")
    depth(admin, "orders", "Due").get_by_role("link").click()
    expect(admin.locator("#result_list tbody tr")).to_have_count(1)
    expect(job_row(admin, close_key(order)).get_by_text("due", exact=True)).to_be_visible()
    shop.reload()
    expect(order_state(shop)).to_have_text("unpaid")

    resume(admin, "orders")
    expect(told(admin)).to_contain_text("The queue orders was resumed.")
    expect(order_state(shop)).to_have_text("closed")
    admin.goto(QUEUES)
    look_until(admin, depth(admin, "orders", "Due").filter(has_text=re.compile("^0$")))


def test_a_paused_task_says_why_and_until_when_and_is_resumed(admin, jobs):
    admin.goto(f"{QUEUES}pauses/")
    expect(admin.get_by_text("Nothing is paused.")).to_be_visible()
    form = admin.locator("#content-main form").last
    form.get_by_label("Pause").select_option("Task")
    form.get_by_label("Name").fill(TASK)
    form.get_by_label("Until").fill("2099-01-31 18:00")
    form.get_by_label("Reason").fill("the provider reports errors")
    form.get_by_role("button", name="Pause").click()
    expect(told(admin)).to_have_text(f"Paused: {TASK}. Jobs that are still running: 0.")
    row = admin.locator("#pauses tbody tr")
    expect(row).to_contain_text([TASK])
    expect(row).to_contain_text(["2099-01-31 18:00"])
    expect(row).to_contain_text(["the provider reports errors"])
    shoot(admin, "admin-pauses")

    admin.goto(f"{JOBS}{jobs['waiting']}/change/")
    expect(admin.locator("#content-main")).to_contain_text(f"The task {TASK} has been paused by admin:admin since")
    expect(admin.locator("#content-main")).to_contain_text("The pause ends at 2099-01-31 18:00")
    expect(admin.locator("#content-main")).to_contain_text("Reason: the provider reports errors")
    admin.goto(QUEUES)
    admin.locator("#delayq-live .delayq-notice").get_by_role("link", name=TASK).click()
    row.get_by_role("button", name="Resume").click()
    expect(told(admin)).to_have_text(f"Resumed: {TASK}.")
    admin.goto(f"{JOBS}{jobs['waiting']}/change/")
    expect(admin.locator("#content-main")).not_to_contain_text("has been paused")


def test_a_rate_is_set_seen_on_the_dashboard_and_reset(admin, example):
    admin.goto(f"{QUEUES}rates/")
    expect(admin.get_by_text("No rate is set, and no job waits for one.")).to_be_visible()
    form = admin.locator("#content-main form").last
    form.get_by_label("Name").fill("provider:north")
    form.get_by_label("Rate").fill("few")
    form.get_by_label("Reason").fill("north asks for it")
    form.get_by_role("button", name="Set a rate").click()
    expect(form.locator(".errorlist")).to_have_text("Enter a number and a unit, such as 100/m. The units are s, m, h and d.")
    form.get_by_label("Rate").fill("1/d")
    form.get_by_role("button", name="Set a rate").click()
    expect(told(admin)).to_have_text("The rate of provider:north is 1/d. Waiting jobs: 0.")
    row = admin.locator("#rates tbody tr")
    expect(row).to_contain_text(["north asks for it"])
    last = example.run(PAY_OUTS).strip().splitlines()[-1]

    admin.goto(QUEUES)
    line = admin.locator("#delayq-live .delayq-rate")
    look_until(admin, line.filter(has_text=re.compile("1/d since .* by admin:admin · 2 jobs wait, the oldest due since")))
    shoot(admin, "admin-dashboard-rates")
    line.get_by_role("link", name="provider:north").click()
    expect(row.locator("td[data-label=Waiting]")).to_have_text("2")
    shoot(admin, "admin-rates")
    admin.goto(f"{JOBS}{last}/change/")
    expect(admin.locator(".delayq-why")).to_contain_text("The job is due and is waiting for the rate provider:north.")
    expect(admin.locator("dl.delayq-facts")).to_contain_text("waits for its rate")
    expect(admin.locator("dl.delayq-facts")).not_to_contain_text("late")
    shoot(admin, "admin-rated-job")

    admin.goto(f"{QUEUES}rates/")
    row.get_by_role("button", name="Reset").click()
    expect(told(admin)).to_have_text("The rate of provider:north is reset.")
    expect(row.get_by_role("button", name="Reset")).to_have_count(0)


def test_the_page_of_a_job_follows_it_but_takes_away_nothing_that_is_written(admin, example):
    example.run(
        "import django_delayq as d; from shop.tasks import close_order\nd.schedule(close_order, 987654324, delay='1d', key='followed')"
    )
    open_job(admin, "followed")
    admin.locator("#delayq-every").select_option("2")
    admin.locator("#delayq-every").blur()
    admin.evaluate("window.same = true")
    field = admin.locator("form.delayq-act").first.get_by_label("Reason")
    field.fill("half a sen")
    field.blur()
    expect(admin.locator("#delayq-told")).to_have_text("paused while you type or select")
    cancel = "import django_delayq as d; d.cancel(key='followed', queue='orders', actor='kim', reason='no more')"
    example.run(cancel)
    expect(admin.get_by_role("heading", level=1).locator(".delayq-state")).to_have_text("scheduled")
    expect(field).to_have_value("half a sen")
    field.fill("")
    field.blur()
    expect(admin.get_by_role("heading", level=1).locator(".delayq-state")).to_have_text("cancelled")
    expect(moment(admin, "cancelled")).to_contain_text("no more")
    expect(admin.get_by_role("button", name="Requeue")).to_be_visible()
    assert admin.evaluate("window.same")
    admin.locator("#delayq-every").select_option("5")


def test_the_worker_is_listed_with_its_queues(admin):
    admin.goto(WORKERS)
    worker = admin.locator("#workers tbody tr")
    expect(worker).to_have_count(1)
    for queue in ("default", "orders", "partners"):
        expect(worker).to_contain_text(queue)
    expect(worker.locator(".delayq-state")).to_have_text("working")


def test_who_may_only_look_sees_no_buttons_and_a_post_by_hand_is_forbidden(tabs, jobs):
    viewer = tabs.open("viewer")
    viewer.goto(JOBS)
    expect(viewer.locator("#result_list tbody tr").first).to_be_visible()
    expect(viewer.locator("select[name=action]")).to_have_count(0)
    for name in ("waiting", "failed"):
        viewer.goto(f"{JOBS}{jobs[name]}/change/")
        expect(viewer.get_by_role("heading", name="Timeline")).to_be_visible()
        assert buttons(viewer) == []
    shoot(viewer, "viewer-job")
    viewer.goto(QUEUES)
    expect(queue_row(viewer, "orders")).to_be_visible()
    assert buttons(viewer) == ["Show"]  # from the forecast, which only reads
    viewer.goto(WORKERS)
    expect(viewer.locator("#workers tbody tr").first).to_be_visible()

    for verb in JOB_ACTS:
        assert post_by_hand(viewer, f"{JOBS}{jobs['waiting']}/{verb}/", reason="", delay="1s").status == 403
    for verb in ("pause", "resume"):
        assert post_by_hand(viewer, f"{QUEUES}orders/{verb}/").status == 403
    by_list = {"action": "cancel", "index": "0", "confirmed": "1", "_selected_action": jobs["waiting"]}
    post_by_hand(viewer, JOBS, **by_list)
    viewer.goto(f"{JOBS}{jobs['waiting']}/change/")
    expect(viewer.get_by_role("heading", level=1).locator(".delayq-state")).to_have_text("scheduled")


def test_a_get_of_an_action_changes_nothing_and_is_not_allowed(admin, jobs):
    admin.goto(QUEUES)
    for verb in JOB_ACTS:
        assert admin.request.get(f"{JOBS}{jobs['waiting']}/{verb}/").status == 405
    for verb in ("pause", "resume"):
        assert admin.request.get(f"{QUEUES}orders/{verb}/").status == 405


def test_a_post_without_a_token_or_without_a_login_does_nothing(tabs, admin, jobs):
    address = f"{JOBS}{jobs['waiting']}/cancel/"
    assert admin.request.post(address, form={"reason": ""}).status == 403
    stranger = tabs.open()
    stranger.goto("/admin/")
    answer = post_by_hand(stranger, address)
    assert answer.status == 302
    assert "/login/" in answer.headers["location"]
    admin.goto(f"{JOBS}{jobs['waiting']}/change/")
    expect(admin.get_by_role("heading", level=1).locator(".delayq-state")).to_have_text("scheduled")


def test_what_a_job_carries_is_shown_as_text_under_the_strict_policy(tabs, admin, jobs):
    addresses = ["/admin/", JOBS, f"{JOBS}?state=scheduled", QUEUES, WORKERS]
    addresses += [f"{JOBS}{id}/{page}/" for id in jobs.values() for page in ("change", "history")]
    for address in addresses:
        answer = admin.goto(address)
        assert answer.status == 200
        assert answer.headers["content-security-policy"] == POLICY
        assert not re.fullmatch("[12]", admin.title())
    admin.goto(f"{JOBS}{jobs['hostile']}/change/")
    expect(admin.get_by_text(HOSTILE).first).to_be_visible()
    expect(admin.locator("#content img, #content script")).to_have_count(0)

    search_jobs(admin, HOSTILE)
    job_row(admin, HOSTILE).get_by_role("checkbox").check()
    admin.locator("select[name=action]").select_option("reschedule")
    admin.locator("button[name=index]").click()
    expect(admin.get_by_text(HOSTILE)).to_be_visible()
    shoot(admin, "admin-ask-reschedule")
    admin.get_by_label("Delay from now").fill("2d")
    admin.get_by_label("Reason").fill(HOSTILE)
    admin.get_by_role("button", name="Reschedule").click()
    expect(told(admin)).to_have_text("1 rescheduled.")
    pause(admin, "partners", HOSTILE)
    expect(queue_row(admin, "partners")).to_contain_text(HOSTILE)
    resume(admin, "partners")


def test_no_page_but_the_list_of_jobs_scrolls_sideways_on_a_phone(tabs, jobs):
    phone = tabs.open("admin", narrow=True)
    wider = {}
    for name, address in {
        "index": "/admin/",
        "queues": QUEUES,
        "workers": WORKERS,
        "waiting": f"{JOBS}{jobs['waiting']}/change/",
        "failed": f"{JOBS}{jobs['failed']}/change/",
        "hostile": f"{JOBS}{jobs['hostile']}/change/",
    }.items():
        phone.goto(address)
        shoot(phone, f"phone-admin-{name}")
        wider[name] = sideways(phone)
    phone.goto(f"{JOBS}?q=waiting")
    shoot(phone, "phone-admin-jobs")
    phone.locator("input.action-select").first.check()
    phone.locator("select[name=action]").select_option("reschedule")
    phone.locator("button[name=index]").click()
    expect(phone.get_by_label("Delay from now")).to_be_visible()
    shoot(phone, "phone-admin-ask")
    wider["ask"] = sideways(phone)
    assert wider == dict.fromkeys(wider, 0)
