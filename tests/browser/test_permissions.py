"""Denies each permission of the package. A user with all other permissions does not see what it allows, and a request by hand is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import expect, shoot
from tests.browser.pages import JOBS, OPERATIONS, QUEUES, SCHEDULES, SET_ASIDE, TARGETS, WORKERS, post_by_hand

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.browser.dressed", "SENSITIVE": "order_id"}
SECRET = 987612345  # a masked argument
TOKEN = "c" * 32
NONE = "none"  # a user with all permissions who is not a superuser

PREPARE = """
import json
from importlib import import_module
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Permission, User
import django_delayq as delayq
from django_delayq import clock
from django_delayq.models import Job, Operation, SetAside
from django_delayq.periodic import schedules
from shop.tasks import close_order
ours = Permission.objects.filter(content_type__app_label="delayq")
seats = {{}}
for lacks in ({none!r}, *ours.values_list("codename", flat=True)):
    clerk = User.objects.create_user(f"without {{lacks}}", is_staff=True)
    clerk.user_permissions.set(ours.exclude(codename=lacks))
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(clerk.pk), clerk.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session.create()
    seats[lacks] = session.session_key
then = clock.now()
failed = Job.objects.create(
    queue="orders", task="shop.tasks.close_order", key="failed", state="failed", run_at=then, created_at=then, started_at=then,
    finished_at=then, attempts=1, max_attempts=1, error="ValueError: no", fingerprint="f", args=[{secret}], kwargs={{}}, published=then,
)
unresolved = Job.objects.create(
    queue="orders", task="shop.tasks.close_order", key="unresolved", state="scheduled", run_at=then, created_at=then, max_attempts=1,
    error="how it ended is not known", ending="unknown", args=[{secret}], kwargs={{}},
)
waiting = delayq.schedule(close_order, {secret}, delay="1d", key="waiting", once_for="1d")
operation = Operation.objects.create(verb="cancel", selection={{"text": "key:nothing"}}, stage="paused", actor="admin:admin")
aside = SetAside.objects.create(
    queue="orders", stream_id="1-1", item=0, kind="failed", job_id=failed.pk, at=then, raw=b"[{secret}]", length=11, code="22P02",
    noticed_at=then,
)
nightly = schedules.create("nightly", "shop.tasks.close_order", cron="0 3 * * *", args=[{secret}], actor="admin:admin")
ids = {{"failed": failed.pk, "unresolved": unresolved.pk, "waiting": waiting.id}}
ids |= {{"operation": operation.pk, "aside": aside.pk, "nightly": nightly.pk}}
print(json.dumps({{"seats": seats, **{{name: str(id) for name, id in ids.items()}}}}))
"""
TRACES = """
from django.contrib.admin.models import LogEntry
from django_delayq.models import Event, Operation
print(LogEntry.objects.filter(user__username__startswith="without").count(), Operation.objects.count(),
      Event.objects.filter(actor__startswith="admin:without").count())
"""


@dataclass(frozen=True)
class Right:
    """What a permission allows: an element on a page, and GET and POST addresses that are refused without it."""

    page: str
    found: Callable[[Page], Locator]
    gets: tuple[str, ...] = ()
    posts: tuple[str, ...] = ()


def button(name: str) -> Callable[[Page], Locator]:
    return lambda page: page.locator("#content-main").get_by_role("button", name=name, exact=True)


def link(name: str) -> Callable[[Page], Locator]:
    return lambda page: page.locator("#content-main").get_by_role("link", name=name)


def leads_to(address: str) -> Callable[[Page], Locator]:
    return lambda page: page.locator(f"#content-main a[href='{address}']")


def of(css: str) -> Callable[[Page], Locator]:
    return lambda page: page.locator(css)


WAITING, FAILED, PART = f"{JOBS}{{waiting}}/", f"{JOBS}{{failed}}/", f"{OPERATIONS}{{operation}}/"
UNRESOLVED = f"{JOBS}{{unresolved}}/"
START, NIGHTLY = f"{OPERATIONS}start/", f"{SCHEDULES}{{nightly}}/"
FIELDS = {"reason": "", "delay": "1h", "typed": "orders", "args": "[1]", "kwargs": "{}", "confirmed": "1"}
RIGHTS = {
    "view_job": Right(
        "/admin/",
        leads_to(JOBS),
        (JOBS, f"{JOBS}failures/", f"{WAITING}change/", f"{FAILED}edit/", f"{START}cancel/"),
        (f"{WAITING}cancel/", f"{FAILED}edit/", f"{START}cancel/"),
    ),
    "cancel_job": Right(f"{WAITING}change/", button("Cancel"), (f"{START}cancel/",), (f"{WAITING}cancel/", f"{START}cancel/")),
    "run_now_job": Right(f"{WAITING}change/", button("Run now"), (f"{START}run_now/",), (f"{WAITING}run_now/", f"{START}run_now/")),
    "reschedule_job": Right(
        f"{WAITING}change/",
        button("Reschedule"),
        (f"{START}reschedule/",),
        (f"{WAITING}reschedule/", f"{START}reschedule/"),
    ),
    "requeue_job": Right(f"{FAILED}change/", button("Requeue"), (f"{START}requeue/",), (f"{FAILED}requeue/", f"{START}requeue/")),
    "resolve_job": Right(
        f"{UNRESOLVED}change/", button("Mark as succeeded"), (), (f"{UNRESOLVED}mark_succeeded/", f"{UNRESOLVED}mark_failed/")
    ),
    "forget_key": Right(f"{WAITING}change/", button("Free the key"), (), (f"{WAITING}forget/",)),
    "edit_job": Right(f"{FAILED}change/", link("Edit and requeue"), (f"{FAILED}edit/",), (f"{FAILED}edit/",)),
    "export_job": Right(JOBS, leads_to(f"{JOBS}export/"), (f"{JOBS}export/",), (f"{JOBS}export/",)),
    "view_sensitive": Right(f"{FAILED}change/", of(f"#content-main pre:has-text('{SECRET}')")),
    "view_operation": Right("/admin/", leads_to(OPERATIONS), (OPERATIONS, f"{PART}change/", f"{PART}history/"), (f"{PART}cancel/",)),
    "start_operation": Right(f"{JOBS}?state=failed", of(".delayq-all"), (f"{START}requeue/",), (f"{START}requeue/",)),
    "steer_operation": Right(
        f"{PART}change/",
        button("Cancel the rest"),
        (),
        (f"{PART}pause/", f"{PART}resume/", f"{PART}cancel/"),
    ),
    "view_queue": Right(
        "/admin/",
        leads_to(QUEUES),
        (QUEUES, f"{QUEUES}remedies/", f"{QUEUES}orders/purge/", f"{QUEUES}pauses/"),
        (f"{QUEUES}orders/pause/", f"{QUEUES}orders/purge/", f"{QUEUES}pauses/"),
    ),
    "pause_queue": Right(
        QUEUES,
        of("#queues summary[aria-label='Pause orders']"),
        (),
        (f"{QUEUES}orders/pause/", f"{QUEUES}orders/resume/", f"{QUEUES}pauses/"),
    ),
    "set_rate": Right(f"{QUEUES}rates/", of("#content-main h2:text-is('Set a rate')"), (), (f"{QUEUES}rates/",)),
    "purge_queue": Right(QUEUES, leads_to(f"{QUEUES}orders/purge/"), (f"{QUEUES}orders/purge/",), (f"{QUEUES}orders/purge/",)),
    "view_setaside": Right(
        "/admin/",
        leads_to(SET_ASIDE),
        (SET_ASIDE, f"{SET_ASIDE}{{aside}}/change/", f"{SET_ASIDE}{{aside}}/history/"),
        (SET_ASIDE,),
    ),
    "retry_setaside": Right(SET_ASIDE, of("select[name=action]:has(option[value=try_again])")),
    "view_target": Right("/admin/", leads_to(TARGETS), (TARGETS,)),
    "view_worker": Right("/admin/", leads_to(WORKERS), (WORKERS,), (f"{WORKERS}{{worker}}/quiet/", f"{WORKERS}{{worker}}/stop/")),
    "quiet_worker": Right(WORKERS, of("#workers button:text-is('Quiet')"), (), (f"{WORKERS}{{worker}}/quiet/",)),
    "view_periodic": Right(
        "/admin/",
        leads_to(SCHEDULES),
        (SCHEDULES, f"{NIGHTLY}change/", f"{NIGHTLY}history/", f"{NIGHTLY}override/", f"{NIGHTLY}edit/", f"{SCHEDULES}add/"),
        tuple(f"{NIGHTLY}{act}/" for act in ("on", "off", "run", "drop", "override", "edit", "delete")),
    ),
    "switch_periodic": Right(f"{NIGHTLY}change/", button("Turn off"), (), (f"{NIGHTLY}on/", f"{NIGHTLY}off/")),
    "override_periodic": Right(
        f"{NIGHTLY}change/",
        link("Override dates …"),
        (f"{NIGHTLY}override/",),
        (f"{NIGHTLY}override/", f"{NIGHTLY}drop/"),
    ),
    "run_periodic": Right(f"{NIGHTLY}change/", button("Run now"), (), (f"{NIGHTLY}run/",)),
    "schedule_job": Right(
        f"{NIGHTLY}change/",
        link("Change …"),
        (f"{SCHEDULES}add/", f"{NIGHTLY}edit/", f"{NIGHTLY}delete/"),
        (f"{SCHEDULES}add/", f"{NIGHTLY}edit/", f"{NIGHTLY}delete/"),
    ),
    "stop_worker": Right(WORKERS, of("#workers button:text-is('Stop')"), (), (f"{WORKERS}{{worker}}/stop/",)),
}


@pytest.fixture(scope="module")
def there(example) -> dict:
    """Sessions by the permission that their users lack, and ids."""
    return json.loads(example.run(PREPARE.format(none=NONE, secret=SECRET)).splitlines()[-1])


@pytest.fixture
def clerk(tabs, example, there) -> Callable[[str], Page]:
    """Opens a page of the user without that permission."""

    def sit(lacks: str) -> Page:
        page = tabs.open()
        cookies = {"sessionid": there["seats"][lacks], "csrftoken": TOKEN}
        page.context.add_cookies([{"name": name, "value": value, "url": example.url} for name, value in cookies.items()])
        return page

    return sit


@pytest.fixture(scope="module")
def ids(example, there) -> dict[str, str]:
    """Returns the ids that are parts of addresses."""
    look = "from django_delayq.console.overview import look\nprint(look().workers[0]['id'])"
    return {
        **{name: there[name] for name in ("failed", "unresolved", "waiting", "operation", "aside", "nightly")},
        "worker": example.run(look),
    }


def unfold(page: Page) -> None:
    page.evaluate("for (const node of document.querySelectorAll('#content details')) node.open = true")


def test_every_permission_is_among_these(there):
    assert set(there["seats"]) == {NONE, *RIGHTS}


@pytest.mark.parametrize("name", RIGHTS)
def test_who_lacks_one_permission_does_not_find_what_it_allows_and_is_refused(clerk, ids, name):
    right = RIGHTS[name]
    for lacks in (NONE, name):
        page = clerk(lacks)
        assert page.goto(right.page.format(**ids)).status == 200
        unfold(page)
        shoot(page, f"permissions-{name}-{'allowed' if lacks == NONE else 'denied'}")
        if lacks == NONE:
            expect(right.found(page).first).to_be_visible()
        else:
            expect(page.locator("#content-main")).to_be_visible()
            expect(right.found(page)).to_have_count(0)
    for address in right.gets:
        assert page.request.get(address.format(**ids), max_redirects=0).status == 403, address
    for address in right.posts:
        assert post_by_hand(page, address.format(**ids), **FIELDS).status == 403, address


def test_what_is_masked_is_nowhere_to_be_found_without_the_permission(tabs, clerk, ids):
    page = clerk("view_sensitive")
    for name in ("failed", "waiting"):
        page.goto(f"{JOBS}{ids[name]}/change/")
        expect(page.locator("dl.delayq-lines").get_by_text("***")).to_be_visible()
        assert str(SECRET) not in page.content()
    expect(page.locator("#raw")).to_have_count(0)  # only superusers may do that
    page.goto(f"{JOBS}{ids['failed']}/change/")
    expect(button("Requeue")(page)).to_be_visible()
    expect(link("Edit and requeue")(page)).to_have_count(0)
    page.goto(f"{JOBS}{ids['failed']}/edit/")  # typed by hand
    expect(page.locator(".messagelist")).to_contain_text("you do not have permission to view its arguments")
    assert str(SECRET) not in page.content()
    page.goto(f"{JOBS}?q=arg:order_id={SECRET}")
    expect(page.locator("#result_list tbody tr")).to_have_count(0)
    page.goto(f"{SET_ASIDE}{ids['aside']}/change/")
    expect(page.locator("#content")).to_contain_text("22P02")
    assert str(SECRET) not in page.content()

    page = clerk(NONE)
    page.goto(f"{SET_ASIDE}{ids['aside']}/change/")
    expect(page.locator(".delayq-bytes")).to_have_text(f"[{SECRET}]")
    for name in ("failed", "waiting"):
        page.goto(f"{JOBS}{ids[name]}/change/")
        expect(page.locator("dl.delayq-lines").get_by_text(str(SECRET))).to_be_visible()
    page.goto(f"{JOBS}{ids['failed']}/edit/")
    expect(page.get_by_label("order_id", exact=True)).to_have_value(str(SECRET))


def test_actions_of_the_list_are_those_that_are_allowed(clerk):
    for lacks in (NONE, "cancel_job", "run_now_job", "reschedule_job", "requeue_job"):
        page = clerk(lacks)
        page.goto(JOBS)
        offered = [option.get_attribute("value") for option in page.locator("select[name=action] option").all()]
        wanted = ["", "cancel", "run_now", "reschedule", "requeue"]
        assert offered == [value for value in wanted if f"{value}_job" != lacks], lacks


def test_nothing_of_all_this_has_left_a_trace(example, there):
    assert example.run(TRACES) == "0 1 0"
