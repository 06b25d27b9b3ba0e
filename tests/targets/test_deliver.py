"""`deliver`: what it refuses before it writes, what travels with the job, and that it costs nothing for a project that does not use
it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

import django_delayq
from django_delayq import ConfigError, PayloadError, PayloadTooLarge, TargetRefused
from django_delayq.contrib.http import header_secret
from django_delayq.models import Job
from django_delayq.targets import delivery
from tests.targets.receivers import answer

pytestmark = pytest.mark.django_db

deliver = django_delayq.deliver
URL = "https://partner.example/hook"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("", "url"),
        (7, "url"),
        ("https://" + "a" * 5000, "url"),
        ("partner.example/hook", "url_scheme"),
        ("//partner.example/hook", "url_scheme"),
        ("ftp://partner.example/", "url_scheme"),
        ("file:///etc/passwd", "url_scheme"),
        ("https://", "url"),
        ("https:///hook", "url"),
        ("https://a b/", "url"),
        ("https://partner.example\\@10.0.0.1/", "url"),
        ("https://partner.example/\r\nHost: other", "url"),
        ("https://partner.example/\ttab", "url"),
        ("https://partner.example:99999/", "url"),
        ("https://partner.example:port/", "url"),
        ("https://[fe80::1%25eth0]/", "url"),
        ("https://[::1", "url"),
        ("https://[v1.x]/", "url"),
        ("https://-a.example/", "url"),
        ("https://a..example/", "url"),
        ("https://%31%32%37.0.0.1/", "url"),
        ("https://user@partner.example/", "url_userinfo"),
        ("https://user:very-secret@partner.example/", "url_userinfo"),
        ("https://@partner.example/", "url_userinfo"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(delayq, url, code):
    with pytest.raises(TargetRefused) as refused:
        deliver(url, json=1)
    assert refused.value.code == code
    assert "very-secret" not in str(refused.value)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("HTTPS://Partner.Example:443/Hook", "https://partner.example/Hook"),
        ("http://partner.example", "http://partner.example/"),
        ("https://partner.example:8443/a?b=c#part", "https://partner.example:8443/a?b=c"),
        ("https://bücher.example/straße?q=ü", "https://xn--bcher-kva.example/stra%C3%9Fe?q=%C3%BC"),
        ("https://partner.example/a%2Fb?x=%20", "https://partner.example/a%2Fb?x=%20"),
        ("https://[2001:DB8::1]/", "https://[2001:db8::1]/"),
    ],
)
def test_a_url_is_kept_in_one_way_to_write_it(delayq, given, kept):
    deliver(given, json=1, delay="1h")
    assert Job.objects.get().kwargs["url"] == kept


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"json": 1, "data": "1"}, "json or data"),
        ({"data": {"a": 1}}, "text or bytes"),
        ({"method": "post"}, "method="),
        ({"method": "CONNECT"}, "method="),
        ({"redirects": -1}, "redirects="),
        ({"redirects": True}, "redirects="),
        ({"redirects": 11}, "redirects="),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout="),
        ({"headers": {"Authorization": "Bearer very-secret"}}, "Authorization cannot contain a literal value"),
        ({"headers": {"authorization": "very-secret"}}, "cannot contain a literal value"),
        ({"headers": {"Cookie": "a=very-secret"}}, "cannot contain a literal value"),
        ({"headers": {"Proxy-Authorization": "very-secret"}}, "cannot contain a literal value"),
        ({"headers": {"Host": "other.example"}}, "set automatically"),
        ({"headers": {"Webhook-Id": "1"}}, "set automatically"),
        ({"headers": {"Content-Length": "1"}}, "set automatically"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, "passed twice"),
        ({"headers": {"X A": "1"}}, "not a valid header name"),
        ({"headers": {"X-A": "1\r\nX-B: 2"}}, "visible ASCII"),
        ({"headers": {"X-A": 7}}, "visible ASCII"),
        ({"headers": {"X-A": {"secret": "partner", "else": 1}}}, "must be text"),
        ({"headers": {"X-A": {"prefix": "Bearer "}}}, "must be text"),
        ({"headers": {"X-A": {"secret": "partner", "prefix": "a\n"}}}, "must be text"),
        ({"headers": {"X-A": {"secret": "patner"}}}, "did you mean 'partner'"),
        ({"secret": "patner"}, "did you mean 'partner'"),
        ({"secret": ""}, "must be text, and a key of"),
        ({"secret": "plain"}, "cannot sign"),
        ({"dely": "10m"}, "dely"),
        ({"timeout_": 1}, "timeout_"),
        ({"delay": "1m", "run_at": 5}, "delay or run_at"),
    ],
)
def test_an_option_that_cannot_work_is_refused(delayq, http, settings, options, told):
    http(SECRETS={**settings.DELAYQ["HTTP"]["SECRETS"], "plain": "very-secret-token"})
    with pytest.raises(ConfigError) as refused:
        deliver(URL, **options)
    assert told in str(refused.value)
    assert "very-secret" not in str(refused.value)
    assert not Job.objects.exists()


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), {"a": b""}])
def test_what_is_no_json_is_refused(delayq, value):
    with pytest.raises(PayloadError, match="cannot be written as JSON"):
        deliver(URL, json=value)


def test_a_body_that_is_too_large_is_refused(delayq):
    with pytest.raises(PayloadTooLarge):
        deliver(URL, data="a" * 70_000)


def test_without_the_setting_it_says_what_to_write(delayq, settings):
    settings.DELAYQ = {name: value for name, value in settings.DELAYQ.items() if name != "HTTP"}
    with pytest.raises(ConfigError, match=r'Add "HTTP": \{\}'):
        deliver(URL, json=1)


def test_without_urllib3_it_says_what_to_install(delayq, monkeypatch):
    monkeypatch.setattr(delivery, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r'pip install "django-delayq\[http\]"'):
        deliver(URL, json=1)


def test_a_worker_without_urllib3_puts_it_off(delayq, host, monkeypatch):
    deliver(host().url(), json=1)
    with monkeypatch.context() as patched:
        patched.setattr(delivery, "find_spec", lambda _name: None)
        assert [ran.outcome for ran in delayq.run_due()] == ["snooze"]
    assert [ran.outcome for ran in delayq.advance("2m")] == ["ack"]


def test_no_secret_travels_and_none_is_told_of(delayq, host, http, settings, capsys):
    http(SECRETS={**settings.DELAYQ["HTTP"]["SECRETS"], "token": "very-secret-token"})
    job = deliver(
        host(answer(200)).url(),
        json=1,
        secret="partner",
        headers={"Authorization": header_secret("token", prefix="Bearer ")},
        delay="1m",
    )
    row = Job.objects.get(pk=job.id)
    assert row.kwargs["headers"] == {
        "Authorization": {"secret": "token", "prefix": "Bearer "},
        "Content-Type": "application/json",
    }
    (ran,) = delayq.advance("1m")
    told = f"{vars(row)} {vars(Job.objects.get(pk=job.id))} {ran} {django_delayq.conf.get()!r} {capsys.readouterr()}"
    for secret in ("very-secret-token", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"):
        assert secret not in told


def test_it_is_a_part_of_the_transaction(delayq, host):
    partner = host()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        deliver(partner.url(), json=1)
        raise ZeroDivisionError
    assert delayq.run_due() == []
    assert partner.requests == []


def test_a_key_is_unique_among_deliveries_too(delayq, host):
    partner = host()
    deliver(partner.url(), json=1, key="order:7", delay="1h")
    deliver(partner.url(), json=2, key="order:7", delay="2h", on_conflict="replace")
    delayq.drain()
    assert [request.json for request in partner.requests] == [2]


def test_its_queue_is_that_of_the_settings_unless_it_says_otherwise(delayq, http):
    http(QUEUE="orders")
    assert deliver(URL, json=1, delay="1h").queue == "orders"
    assert deliver(URL, json=1, delay="1h", queue="redis").queue == "redis"


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_a_request_without_a_body_bears_none(delayq, host, method):
    partner = host(answer(204))
    deliver(partner.url(), method=method)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert (partner.requests[0].line, partner.requests[0].body) == (f"{method} /hook HTTP/1.1", b"")


def test_none_is_json_too_and_text_is_as_it_was_given(delayq, host):
    partner = host()
    deliver(partner.url(), json=None)
    deliver(partner.url(), data="Grüße", headers={"content-type": "text/x"})
    deliver(partner.url(), data=b"\xff")
    delayq.run_due()
    assert [(request.body, request.headers["content-type"]) for request in partner.requests] == [
        (b"null", "application/json"),
        ("Grüße".encode(), "text/x"),
        (b"\xff", "application/octet-stream"),
    ]


async def again() -> None:
    with pytest.raises(SynchronousOnlyOperation, match="adeliver"):
        deliver(URL, json=1)
    job = await django_delayq.adeliver(URL, json={"order": 7}, delay="10m", durability="redis", queue="redis")
    assert job.task == "django_delayq.deliver"
    assert abs(job.run_at - django_delayq.clock.now() - timedelta(minutes=10)) < timedelta(minutes=1)


def test_in_async_code_its_twin_is_awaited(delayq):
    from asgiref.sync import async_to_sync

    async_to_sync(again)()


def test_who_delivers_nothing_has_nothing_of_it_in_memory():
    code = """
import json, sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_delayq"], DELAYQ={DELAYQ}, USE_TZ=True)
import django, django_delayq
django.setup()
from django_delayq.producer.task import registry
loaded = [name for name in sys.modules if name == "urllib3" or name.startswith(("django_delayq.contrib.http", "django_delayq.targets"))]
known = registry.find("django_delayq.deliver") is not None
django_delayq.deliver
print(json.dumps([loaded, known, "urllib3" in sys.modules]))
"""

    def loaded(delayq: str) -> list[object]:
        command = [sys.executable, "-c", code.replace("{DELAYQ}", delayq)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert loaded("{}") == [[], False, False]
    modules, known, urllib3 = loaded('{"HTTP": {}}')
    assert "django_delayq.targets.delivery" in modules
    assert (known, "urllib3" in modules, urllib3) == (True, False, False)
