"""The content security policy that the pages send."""

from __future__ import annotations

import re

import pytest
from django.template import engines

from tests.admin.conftest import JOBS, OPERATIONS, QUEUES, SET_ASIDE, WORKERS, beat, choose
from tests.admin.test_operations import begin
from tests.admin.test_periodic import SCHEDULES, made
from tests.admin.test_periodic import page as schedule_page
from tests.security.test_differential import set_aside

META = r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">'
STRICT = "default-src &#x27;self&#x27;"


@pytest.fixture
def pages(orders, staff):
    failed, kept, operation, row = orders.ended("fail", max_attempts=1), set_aside(orders), begin(), made()
    orders.scheduled(1)
    beat("orders")
    client = staff()
    places = [
        JOBS,
        f"{JOBS}failures/",
        f"{JOBS}{failed.id}/change/",
        f"{JOBS}{failed.id}/edit/",
        QUEUES,
        f"{QUEUES}remedies/",
        f"{QUEUES}orders/purge/",
        WORKERS,
        OPERATIONS,
        f"{OPERATIONS}{operation.pk}/change/",
        f"{OPERATIONS}{operation.pk}/history/",
        f"{OPERATIONS}start/cancel/?state=scheduled",
        SET_ASIDE,
        f"{SET_ASIDE}{kept.pk}/change/",
        f"{SET_ASIDE}{kept.pk}/history/",
        SCHEDULES,
        f"{SCHEDULES}add/",
        *(schedule_page(row, what) for what in ("change", "history", "override", "edit", "delete")),
    ]
    return lambda: [(place, client.get(place)) for place in places] + [("ask", choose(client, "cancel", [failed]))]


def policies(text: str) -> list[str]:
    return re.findall(META, text)


def test_every_page_bears_a_strict_policy_before_anything_that_a_job_carries(pages):
    for place, answer in pages():
        text = answer.content.decode()
        assert answer.status_code == 200, place
        assert policies(text) == [STRICT], place
        assert text.index("Content-Security-Policy") < text.index("<body"), place


def test_no_page_has_what_the_policy_would_hold_back(pages):
    for place, answer in pages():
        text = answer.content.decode()
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text), place
        scripts = [tag for tag in re.findall(r"<script[^>]*>", text) if "application/json" not in tag]
        assert all("src=" in tag for tag in scripts), place


def own_policy(get_response):
    def middleware(request):
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", "default-src 'none'")
        return response

    return middleware


def test_the_policy_of_the_project_is_sent_as_it_is(pages, settings):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.admin.test_policy.own_policy"]
    for place, answer in pages():
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'", place


def test_static_files_may_lie_elsewhere(pages, settings):
    settings.STATIC_URL = "https://cdn.example/static/"
    assert {policy for _, answer in pages() for policy in policies(answer.content.decode())} == {f"{STRICT} https://cdn.example"}


def test_in_the_frame_of_a_theme_the_project_decides(pages, settings, tmp_path):
    frame = engines["django"].get_template("admin/base.html").template.source
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin" / "base.html").write_text(frame)
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [str(tmp_path)]}]
    assert {policy for _, answer in pages() for policy in policies(answer.content.decode())} == set()
