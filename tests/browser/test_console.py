"""The console as support staff use it: find jobs, see the reason, fix failed jobs, act on thousands of jobs."""

from __future__ import annotations

import json
import re

import pytest

from django_delayq.console.operation_loop import CHUNK
from tests.browser.chromium import expect, shoot, sideways
from tests.browser.pages import JOBS, OPERATIONS, QUEUES, look_until, moment, post_by_hand, search_jobs, told

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
MANY = 5_000
SOME = 1_111  # of them, whose numbers begin with 1: few enough to be done while the machine has much else to do

PREPARE = """
import json
from datetime import timedelta
import django_delayq as delayq
from django_delayq import clock
from django_delayq.models import Attempt, Job
from shop.tasks import close_order
failing = [delayq.schedule(close_order, 987650000 + n, max_attempts=1, key=f"gone:{{n}}") for n in range(3)]
typo = delayq.schedule(close_order, 987640000, max_attempts=1, key="typo")
waiting = delayq.schedule(close_order, 1, delay="1d", key="waiting", backoff="15s 3m 10m")
delayq.schedule_many(
    close_order.using(delay="2d", key=f"many:{{n}}").bind(n) for n in range({many})
)
long = "name-" * 40
trace = "Traceback (most recent call last):\\n" + "".join(
    f'  File "/srv/shop/deep/module{{n}}.py", line {{n}}, in function{{n}}\\n    call(number={{n}})\\n' for n in range(150)
) + "ValueError: " + "x" * 1900
then = clock.now() - timedelta(hours=3)
worst = Job.objects.create(
    queue="orders", task=long[:200], key=long[:200], state="failed", run_at=then, created_at=then, started_at=then,
    finished_at=then, attempts=3, max_attempts=10, crashes=2, worker="w" * 200, error="ValueError: " + "x" * 1900,
    fingerprint="worst", args=["y" * 65_000], kwargs={{long: {{"nested": [1] * 20}}}}, published=then,
)
for n in range(3):
    Attempt.objects.create(
        job_id=worst.pk, number=n + 1, fence=str(n), started_at=then + timedelta(minutes=n), worker="w" * 200,
        finished_at=then + timedelta(minutes=n, seconds=3), outcome="failed" if n == 2 else "retried",
        error_class="ValueError", message="x" * 1900, traceback=trace,
    )
found = {{"typo": typo, "waiting": waiting}}
print(json.dumps({{**{{name: str(job.id) for name, job in found.items()}}, "worst": str(worst.pk)}}))
"""


@pytest.fixture(scope="module")
def jobs(example) -> dict[str, str]:
    return json.loads(example.run(PREPARE.format(many=MANY)))


def change(id: str) -> str:
    return f"{JOBS}{id}/change/"


def views(page) -> dict[str, str]:
    """Returns the views and their counts."""
    texts = page.locator(".delayq-tabs li a").all_inner_texts()
    return dict(re.fullmatch(r"(.*?)\s*([\d,+]*)", text, re.DOTALL).groups() for text in texts)


def test_views_bear_their_counts_and_pages_follow_one_another(admin, jobs):
    admin.goto(f"{JOBS}?state=scheduled&queue=orders")
    look_until(admin, admin.locator(".delayq-tabs li a").filter(has_text=re.compile(r"Scheduled\s+5,001")))
    expect(admin.locator("#result_list tbody tr")).to_have_count(50)
    first = admin.locator("#result_list tbody tr").first.inner_text()
    expect(admin.get_by_role("link", name="Previous page")).to_have_count(0)
    admin.get_by_role("link", name="Next page").click()
    expect(admin.get_by_role("link", name="First page")).to_be_visible()
    assert admin.locator("#result_list tbody tr").first.inner_text() != first
    admin.get_by_role("link", name="Previous page").click()
    expect(admin.locator("#result_list tbody tr").first).to_have_text(re.compile("waiting"))
    shoot(admin, "console-jobs")


def test_a_search_speaks_the_words_and_says_what_it_does_not_know(admin, jobs):
    search_jobs(admin, "state:scheduled arg:order_id=4999")
    expect(admin.locator("#result_list tbody tr").or_(admin.get_by_role("link", name="Continue searching")).first).to_be_visible()
    search_jobs(admin, "key:many:77")
    expect(admin.locator("#result_list tbody tr")).to_have_count(1)
    search_jobs(admin, "stat:failed")
    expect(admin.locator(".errornote")).to_contain_text("Did you mean state:?")
    shoot(admin, "console-search-refused")


def test_the_list_is_worked_with_the_keyboard_alone(admin, jobs):
    admin.goto(JOBS)
    for _ in range(60):
        admin.keyboard.press("Tab")
        if admin.evaluate("document.activeElement.textContent.trim().startsWith('Failed')"):
            break
    admin.keyboard.press("Enter")
    admin.wait_for_url("**state=failed**")
    expect(admin.locator(".delayq-tabs a[aria-current=page]")).to_contain_text("Failed")
    admin.locator("#searchbar").focus()
    admin.keyboard.type("key:typo")
    admin.keyboard.press("Enter")
    expect(admin.locator("#result_list tbody tr")).to_have_count(1)


def test_a_waiting_job_says_why_and_shows_its_ladder(admin, jobs):
    admin.goto(change(jobs["waiting"]))
    expect(admin.locator(".delayq-why")).to_contain_text("The job is due in 2")
    expect(admin.locator(".delayq-ahead")).to_have_count(8 + 4)  # due, ten attempts less two, "and more", the end
    shoot(admin, "console-waiting")


def test_a_failed_job_is_requeued_with_other_arguments(tabs, admin, jobs):
    admin.goto(change(jobs["typo"]))
    look_until(admin, moment(admin, "attempt 1 failed"))
    look_until(admin, admin.get_by_role("link", name="Edit and requeue"))
    admin.get_by_role("link", name="Edit and requeue").click()
    order = admin.get_by_label("order_id", exact=True)
    order.fill("not a number")
    admin.get_by_role("button", name="Review changes").click()
    expect(admin.locator(".errorlist").first).to_contain_text("Enter a whole number")
    tabs.watch(admin).forgive("400 (Bad Request)")
    order.fill("987640001")
    admin.get_by_label("Reason").fill("a digit was wrong")
    admin.get_by_role("button", name="Review changes").click()
    expect(admin.locator(".delayq-removed")).to_contain_text("987640000")
    expect(admin.locator(".delayq-added")).to_contain_text("987640001")
    shoot(admin, "console-edit")
    admin.get_by_role("button", name="Back").click()
    expect(order).to_have_value("987640001")
    admin.get_by_role("button", name="Review changes").click()
    admin.get_by_role("button", name="Requeue with these arguments").click()
    expect(told(admin)).to_have_text("The job was requeued with the new arguments.")
    look_until(admin, moment(admin, "edited").get_by_text("a digit was wrong"))
    expect(moment(admin, "edited")).to_contain_text("[[987640000], {}]")


def test_a_group_of_failures_is_requeued_as_one(admin, jobs):
    admin.goto(JOBS)
    admin.get_by_role("link", name="Failures by cause").click()
    group = admin.locator("#failures tbody tr").filter(has_text="DoesNotExist")
    expect(group).to_contain_text("shop.tasks.close_order")
    shoot(admin, "console-failures")
    group.get_by_role("link", name="Requeue all").click()
    expect(admin.locator(".delayq-meant")).to_contain_text("matching jobs")
    admin.get_by_label("Reason").fill("the orders are there now")
    shoot(admin, "console-operation-preview")
    admin.get_by_role("button", name="Requeue").click()
    expect(told(admin)).to_contain_text("The operation has started.")
    expect(admin.get_by_role("heading", level=1).locator(".delayq-state")).to_have_text("finished")  # by itself
    expect(admin.locator(".delayq-operation dl")).to_contain_text("done")


def test_a_thousand_are_cancelled_with_progress_pause_and_resume(admin, jobs):
    admin.goto(f"{JOBS}?q=key:many:1*+state:scheduled")
    admin.locator(".delayq-all").get_by_role("link", name="Cancel").click()  # open, because a search is active
    expect(admin.locator(".delayq-meant")).to_contain_text(f"{SOME:,} matching jobs:")
    admin.get_by_label("Spread over").fill("10m")
    expect(admin.get_by_role("link", name="Keep them")).to_be_visible()
    admin.get_by_role("button", name=f"Cancel {SOME:,} jobs", exact=True).click()
    state = admin.get_by_role("heading", level=1).locator(".delayq-state")
    expect(state).to_have_text("running")
    expect(admin.locator(".delayq-operation progress")).to_have_attribute("max", str(SOME))
    expect(admin.locator(".delayq-operation progress")).not_to_have_attribute("value", "0")
    expect(admin.locator(".delayq-operation")).to_contain_text("left")
    shoot(admin, "console-operation-running")
    admin.get_by_role("button", name="Pause").click()
    expect(state).to_have_text("paused")
    seen = int(admin.locator(".delayq-operation progress").get_attribute("value"))
    assert 0 < seen < SOME
    admin.get_by_role("button", name="Resume").click()
    expect(state).to_have_text("running")
    admin.get_by_role("button", name="Cancel the rest").click()
    expect(state).to_have_text("cancelled")
    first = int(admin.locator(".delayq-operation dl dd").first.inner_text())
    assert seen <= first < SOME

    admin.goto(f"{OPERATIONS}start/cancel/?q=key:many:1*+state:scheduled")
    admin.get_by_label("Reason").fill("a campaign that was called off")
    admin.locator(".submit-row input").click()
    expect(state).to_have_text("finished", timeout=300_000)
    done = int(admin.locator(".delayq-operation dl dd").first.inner_text())
    assert SOME - first - CHUNK <= done <= SOME  # a step may have been in progress when the first operation was cancelled
    admin.goto(f"{JOBS}?state=cancelled&queue=orders")
    look_until(admin, admin.locator(".delayq-tabs li a").filter(has_text=re.compile(rf"Scheduled\s+{MANY - SOME + 1:,}$")))
    admin.goto(OPERATIONS)
    shoot(admin, "console-operations")


def test_a_queue_is_purged_by_typing_its_name(tabs, admin, example, jobs):
    example.run(
        "import django_delayq as d; from shop.tasks import close_order\n"
        "d.schedule_many(close_order.using(queue='partners', delay='2d').bind(n) for n in range(5))"
    )
    admin.goto(QUEUES)
    admin.locator("#queues tbody tr").filter(has_text="partners").get_by_role("link", name="Purge").click()
    admin.get_by_label("Type the name of the queue").fill("partner")
    admin.get_by_role("button", name="Purge").click()
    expect(admin.locator(".errorlist")).to_contain_text("This is not the name of the queue.")
    tabs.watch(admin).forgive("400 (Bad Request)")
    admin.get_by_label("Type the name of the queue").fill("partners")
    admin.get_by_role("button", name="Purge").click()
    expect(admin.get_by_role("heading", level=1).locator(".delayq-state")).to_have_text("finished")
    expect(admin.locator(".delayq-operation dl")).to_contain_text("5")


def test_who_may_only_look_finds_nothing_that_would_be_refused(tabs, jobs):
    viewer = tabs.open("viewer")
    viewer.goto(JOBS)
    expect(viewer.locator(".delayq-all")).to_have_count(0)
    viewer.goto(f"{JOBS}failures/")
    expect(viewer.locator("#failures tbody tr").first).to_be_visible()
    expect(viewer.locator("#failures").get_by_role("link", name="Requeue all")).to_have_count(0)
    viewer.goto(change(jobs["worst"]))
    expect(viewer.get_by_role("link", name="Edit and requeue")).to_have_count(0)
    for address in (f"{OPERATIONS}start/cancel/", f"{JOBS}{jobs['worst']}/edit/", f"{QUEUES}orders/purge/"):
        assert viewer.request.get(address).status == 403
        assert post_by_hand(viewer, address, typed="orders", args="[1]", kwargs="{}", confirmed="1").status == 403


def test_it_works_without_javascript(tabs, example, jobs):
    page = tabs.open("admin")
    cookies = page.context.cookies()
    plain = tabs.open(javascript=False)
    plain.context.add_cookies(cookies)
    plain.goto(f"{JOBS}?state=failed")
    plain.get_by_text("All jobs that match").click()
    plain.locator(".delayq-all").get_by_role("link", name="Requeue").click()
    expect(plain.locator(".delayq-meant")).to_contain_text("match")
    plain.goto(f"{JOBS}failures/")
    expect(plain.locator("#failures tbody tr").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_worst_that_a_job_can_carry_fits_every_window(tabs, jobs, scheme):
    wider = {}
    for narrow in (False, True):
        page = tabs.open("admin", narrow=narrow)
        page.emulate_media(color_scheme=scheme)
        size = "narrow" if narrow else "wide"
        for name, address in {
            "jobs": f"{JOBS}?state=failed",
            "job": change(jobs["worst"]),
            "failures": f"{JOBS}failures/",
            "operations": OPERATIONS,
            "edit": f"{JOBS}{jobs['worst']}/edit/",
            "start": f"{OPERATIONS}start/requeue/?state=failed",
        }.items():
            page.goto(address)
            if name == "job":
                page.locator("details summary").nth(-2).click()
            shoot(page, f"console-{scheme}-{size}-{name}")
            wider[f"{size} {name}"] = sideways(page)
    assert wider == dict.fromkeys(wider, 0)


def test_the_list_stays_fresh_but_not_under_a_ticked_box(tabs, admin, example, jobs):
    more = "import django_delayq as d; from shop.tasks import close_order\nd.schedule(close_order, 1, delay='2d', key='fresh:{0}')"
    admin.goto(f"{JOBS}?q=key:fresh:*")
    admin.locator("#delayq-every").select_option("2")
    admin.locator("#delayq-every").blur()
    admin.evaluate("window.same = true")
    example.run(more.format(1))
    rows = admin.locator("#result_list tbody tr")
    expect(rows).to_have_count(1)
    admin.locator("input.action-select").first.check()
    expect(admin.locator("#delayq-told")).to_have_text("paused while you type or select")
    expect(admin.locator(".action-counter")).to_have_text("1 of 1 selected")  # the admin's own script handles the new boxes
    example.run(more.format(2))
    admin.wait_for_timeout(2500)
    expect(rows).to_have_count(1)
    admin.locator("input.action-select").first.uncheck()
    expect(rows).to_have_count(2)
    fold = admin.locator("#delayq-all")
    expect(fold).to_have_attribute("open", "")
    fold.locator("summary").click()
    link = rows.nth(1).get_by_role("link").first  # the older one, which moves down
    link.focus()
    address = link.get_attribute("href")
    example.run(more.format(3))
    expect(rows).to_have_count(3)
    expect(admin.locator(f"a[href='{address}']").first).to_be_focused()
    expect(fold).not_to_have_attribute("open", "")
    admin.locator("#action-toggle").check()
    expect(admin.locator(".action-counter")).to_have_text("3 of 3 selected")
    assert admin.evaluate("window.same")
    admin.locator("#action-toggle").uncheck()
    admin.locator("#delayq-every").select_option("5")
