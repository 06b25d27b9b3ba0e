"""How people see rejected events and try them again."""

from __future__ import annotations

import json

import pytest
from django.contrib.admin.models import LogEntry

import django_delayq as delayq
from django_delayq import ids
from django_delayq.models import Job, SetAside
from django_delayq.producer.stores import stores
from tests.admin.conftest import SET_ASIDE, said
from tests.tasks_for_tests import close_order


@pytest.fixture
def kept(orders) -> SetAside:
    """The end of a job with an invalid number of attempts, so that the row does not know it."""
    job = delayq.schedule(close_order, 7)
    entry = f"{ids.short(job.id)} many 0 f\n" + json.dumps({"m": "iban DE02"})
    stores.link.execute("XADD", orders.store.keys["events"], "*", "at", 1_795_000_000_000, "by", "w", "failed", entry)
    orders.fold()
    return SetAside.objects.get()


def choose(client, kept):
    form = {"action": "try_again", "_selected_action": [str(kept.pk)], "index": "0"}
    return client.post(SET_ASIDE, form, follow=True)


def test_they_are_listed_without_what_they_carry(kept, staff):
    client = staff("view_setaside", "view_job")
    for address in (SET_ASIDE, f"{SET_ASIDE}{kept.pk}/change/"):
        text = client.get(address).content.decode()
        assert ids.short(kept.job_id) in text
        assert "fold:ValueError" in text
        assert "DE02" not in text
        assert "Try again" not in text


def test_what_stood_in_the_stream_is_shown_to_those_who_may_see_masked_arguments(kept, staff):
    client = staff("view_setaside", "view_sensitive")
    assert "DE02" in client.get(f"{SET_ASIDE}{kept.pk}/change/").content.decode()


def test_nobody_sees_or_tries_them_without_the_permission(kept, staff):
    assert staff("view_job").get(SET_ASIDE).status_code == 403
    choose(staff("view_setaside"), kept)
    kept.refresh_from_db()
    assert kept.tries == 1


def test_they_are_tried_again(kept, staff):
    client = staff()
    assert said(choose(client, kept)) == ["1 event was rejected again."]
    kept.refresh_from_db()
    assert kept.tries == 2
    SetAside.objects.update(raw=bytes(kept.raw).replace(b"many", b"1"), length=kept.length - 3)
    assert said(choose(client, kept)) == ["1 event was saved."]
    assert not SetAside.objects.exists()
    assert Job.objects.get(pk=kept.job_id).state == "failed"
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["Try again"] * 2


def test_a_job_is_linked_for_those_only_who_may_see_it(kept, staff):
    for names, linked in ((("view_setaside",), False), (("view_setaside", "view_job"), True)):
        client = staff(*names)
        for address in (SET_ASIDE, f"{SET_ASIDE}{kept.pk}/change/"):
            assert (f"/admin/delayq/job/{kept.job_id}/change/" in client.get(address).content.decode()) is linked


def test_of_many_bytes_the_first_are_shown_and_it_says_so(kept, staff):
    SetAside.objects.update(raw=b"<b>" + b"\x00" * 100_000, length=100_003)
    client = staff("view_setaside", "view_sensitive")
    text = client.get(f"{SET_ASIDE}{kept.pk}/change/").content.decode()
    assert "&lt;b&gt;\\u0000" in text
    assert "<b>" not in text
    assert text.count("\\u0000") == 20_000 - 3
    assert "The first 20000 bytes." in text
    assert "any more" not in text


def test_what_the_database_could_not_keep_whole_says_that_it_is_lost(kept, staff):
    SetAside.objects.update(length=10**9)
    text = staff("view_setaside", "view_sensitive").get(f"{SET_ASIDE}{kept.pk}/change/").content.decode()
    assert "this event cannot be retried" in text
    assert "any more" not in staff("view_setaside").get(f"{SET_ASIDE}{kept.pk}/change/").content.decode()
