"""Tokens by the command and in the admin."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.core.cache import caches
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from django_delayq import clock
from django_delayq.contrib.gateway import apps, idempotency
from django_delayq.contrib.gateway.models import KeptAnswer, Token
from tests.admin.conftest import said
from tests.contrib.gateway.conftest import Caller, refused
from tests.targets.conftest import TASK as DELIVERIES  # noqa: F401  # not in the registry then, as other tests have it
from tests.targets.offers.conftest import TARGETS

LIST = "/admin/delayq_gateway/token/"


def command(*words: str) -> str:
    out = io.StringIO()
    call_command("delayq_gateway", *words, stdout=out, stderr=io.StringIO())
    return out.getvalue().strip()


def test_the_command_makes_a_token_and_shows_it_once(delayq_redis, transactional_db):
    text = command("make", "partner", "--queues", "orders,redis", "--verbs", "schedule, get", "--expires", "90d", "--per-minute", "5")
    assert Caller(text).schedule().status_code == 201
    token = Token.objects.get()
    assert (token.queues, token.verbs, token.tasks, token.per_minute) == (["orders", "redis"], ["schedule", "get"], ["*"], 5)
    assert token.created_by.startswith("cli")
    assert token.expires_at is not None
    assert token.expires_at > clock.now() + timedelta(days=89)
    listed = command("list")
    assert "partner" in listed
    assert "never" not in listed
    assert text not in listed + command("list", "--json")


def test_the_command_rotates_and_revokes(delayq_redis, transactional_db):
    first = command("make", "partner", "--queues", "*", "--verbs", "*")
    second = json.loads(command("rotate", "partner", "--overlap", "1h", "--json"))["token"]
    assert Caller(first).get("tasks").status_code == Caller(second).get("tasks").status_code == 200
    shown = Token.objects.order_by("id")[0].shown
    assert command("revoke", "partner", "--begins-with", f"{shown}…") == "Revoked tokens: 1."
    refused(Caller(first).get("tasks"), 401, "token_invalid")
    assert Caller(second).get("tasks").status_code == 200
    assert json.loads(command("revoke", "partner", "--json")) == {"revoked": 1}
    with pytest.raises(CommandError, match="no live token"):
        command("revoke", "partner")
    with pytest.raises(CommandError, match="no live token"):
        command("rotate", "partner")
    assert [row["live"] for row in json.loads(command("list", "--json"))] == [False, False]


def test_secrets_and_targets_of_a_token_are_shown_to_people(delayq_redis, transactional_db, settings, clerk):
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": TARGETS}
    command("make", "partner", "--queues=*", "--verbs=deliver,offer", "--secrets=hook=https://Partner.example/x", "--targets=shipping")
    token = Token.objects.get()
    assert (token.secrets, token.targets) == (["hook=https://partner.example"], ["shipping"])
    page = clerk("view_token").get(f"{LIST}{token.pk}/change/").content.decode()
    for shown in ("hook=https://partner.example", "shipping"):
        assert shown in command("list")
        assert shown in page
    with pytest.raises(CommandError, match="has no host"):
        command("make", "other", "--queues=*", "--verbs=deliver", "--secrets=hook")
    with pytest.raises(CommandError, match="unknown value 'nowhere'"):
        command("make", "other", "--queues=*", "--verbs=offer", "--targets=nowhere")


def test_a_wrong_word_is_a_sentence(transactional_db):
    with pytest.raises(CommandError, match="unknown value 'steal'"):
        command("make", "partner", "--queues", "*", "--verbs", "steal")
    assert command("list") == "There are no tokens."


def test_the_command_deletes_answers_that_were_kept_long_enough(caller):
    caller.post("jobs", {"task": "x"}, key="one")
    caller.schedule()
    KeptAnswer.objects.update(created_at=clock.now() - idempotency.KEPT - timedelta(seconds=1))
    assert command("prune") == "Deleted responses: 1."


def test_tokens_are_listed_without_their_hash(caller, clerk):
    token = Token.objects.get()
    for address in (LIST, f"{LIST}{token.pk}/change/"):
        text = clerk("view_token").get(address).content.decode()
        assert token.shown in text
        assert token.digest not in text
        assert "Revoke selected" not in text
    assert clerk().get(LIST).status_code == 403
    assert clerk("view_job", app="delayq").get(LIST).status_code == 403


def test_nobody_finds_a_hash_letter_by_letter_by_the_address_of_the_list(caller, clerk):
    begins = Token.objects.get().digest[0]
    assert clerk("view_token").get(f"{LIST}?digest__startswith={begins}").status_code == 400


def test_a_token_is_revoked_in_the_admin_and_that_is_logged(caller, clerk):
    token = Token.objects.get()
    form = {"action": "revoke", "_selected_action": [str(token.pk)], "index": "0"}
    clerk("view_token").post(LIST, form, follow=True)
    assert caller.get("tasks").status_code == 200
    person = clerk("view_token", "revoke_token")
    asked = person.post(LIST, form)
    assert token.shown in asked.content.decode()
    assert "last used: 20" in asked.content.decode()
    assert caller.get("tasks").status_code == 200
    answer = person.post(LIST, {**form, "confirmed": "1", "reason": "x" * 501})
    assert "at most 500 characters" in answer.content.decode()
    assert caller.get("tasks").status_code == 200
    answer = person.post(LIST, {**form, "confirmed": "1", "reason": "it leaked"}, follow=True)
    assert said(answer) == ["1 token is revoked."]
    refused(caller.get("tasks"), 401, "token_invalid")
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, entry.change_message) == (str(token.pk), "Revoke selected tokens: it leaked")
    assert token.shown in entry.object_repr
    text = clerk("view_token").get(LIST).content.decode()
    assert "revoked</span>" in text
    assert "manage.py delayq_gateway rotate" in text
    again = person.post(LIST, form, follow=True)
    assert said(again) == ["Nothing was changed: these tokens are already revoked."]


def deploy() -> dict[str, str]:
    return {
        str(one.id): f"{one.msg} {one.hint}"
        for one in run_checks(include_deployment_checks=True)
        if one.id in ("delayq.W040", "delayq.W041")
    }


def test_w040_tokens_may_travel_in_the_clear(settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.filebased.FileBasedCache", "LOCATION": "/tmp/unused"}}
    settings.SECURE_SSL_REDIRECT = False
    assert "SECURE_SSL_REDIRECT" in deploy()["delayq.W040"]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    assert deploy() == {}
    settings.SECURE_PROXY_SSL_HEADER = None
    settings.SECURE_SSL_REDIRECT = True
    assert deploy() == {}


def test_w041_requests_are_counted_by_each_process_for_itself(settings):
    settings.SECURE_SSL_REDIRECT = True
    assert "not shared between processes" in deploy()["delayq.W041"]
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    assert "rejects all requests" in deploy()["delayq.W041"]
    assert apps.check_gateway()
    assert type(caches["default"]).__name__ == "DummyCache"
