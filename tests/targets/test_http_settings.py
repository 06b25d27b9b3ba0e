"""The values that `DELAYQ["HTTP"]` accepts, and the checks of deliveries, one test per id."""

from __future__ import annotations

import pytest

from django_delayq import conf
from django_delayq.checks import check_tasks
from django_delayq.targets import delivery
from tests.targets.conftest import SECRET


def problems(http, **changes: object) -> dict[str, str]:
    http(**changes)
    return {one.where: f"{one.code} {one.message} {one.hint}" for one in conf.problems()}


def test_nothing_is_enough(settings):
    settings.DELAYQ = {**settings.DELAYQ, "HTTP": {}}
    assert conf.problems() == []
    http = conf.get().http
    assert http is not None
    assert (http.allow, dict(http.secrets), http.timeout, http.gone, http.queue) == ((), {}, 30.0, frozenset({410}), "default")


def test_unset_there_are_no_deliveries(settings):
    settings.DELAYQ = {name: value for name, value in settings.DELAYQ.items() if name != "HTTP"}
    assert conf.get().http is None
    assert conf.given("HTTP") is None


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("ALLOW", "10.0.0.0/8", "list of networks"),
        ("ALLOW", ["10.0.0.1/8"], "host bits"),
        ("ALLOW", ["partner.example"], "invalid network"),
        ("ALLOW", [7], "list of networks"),
        ("SECRETS", ["very-secret"], "dict of names"),
        ("SECRETS", {"": "very-secret"}, "dict of names"),
        ("SECRETS", {"partner": ""}, "'partner'"),
        ("SECRETS", {"partner": "very-secret\n"}, "'partner'"),
        ("SECRETS", {"partner": []}, "'partner'"),
        ("SECRETS", {"partner": 7}, "'partner'"),
        ("SECRETS", {"partner": "whsec_very-secret"}, "base64"),
        ("SECRETS", {"partner": "whsec_QUJD"}, "16 to 64 bytes"),
        ("SECRETS", {"partner": [SECRET, "whsec_QUJD"]}, "16 to 64 bytes"),
        ("PROXY", "proxy.internal:3128", "URL of a proxy"),
        ("PROXY", "http://user:very-secret@proxy.internal", "URL of a proxy"),
        ("PROXY", "socks5://proxy.internal:1080", "URL of a proxy"),
        ("CA", "/nowhere/ca.pem", "existing file or directory of certificates"),
        ("CONNECT", 0, "greater than 0"),
        ("READ", "soon", "is wrong"),
        ("TIMEOUT", None, "is wrong"),
        ("MAX_ANSWER", 100, "at least 2048"),
        ("GONE", 410, "list of status codes"),
        ("GONE", [200], "list of status codes"),
        ("PER_HOST", 0, "at least 1"),
        ("BREAKER", 0, "at least 1"),
        ("PAUSE", 0, "greater than 0"),
        ("QUEUE", "", "text"),
    ],
)
def test_a_wrong_value_is_told_with_its_place_and_no_secret(http, key, value, told):
    found = problems(http, **{key: value})
    assert list(found) == [f'DELAYQ["HTTP"]["{key}"]']
    (text,) = found.values()
    assert text.startswith("E002 ")
    assert told in text
    assert "very-secret" not in text


def test_an_unknown_key_names_the_nearest_one(http):
    assert "did you mean 'ALLOW'" in problems(http, ALOW=[])['DELAYQ["HTTP"]["ALOW"]']


def test_all_mistakes_are_told_at_once(http):
    assert len(problems(http, ALLOW=7, GONE=7, READ=0, ELSE=1)) == 4


def test_what_is_no_dict_is_told(settings):
    settings.DELAYQ = {**settings.DELAYQ, "HTTP": True}
    assert [(one.code, one.where) for one in conf.problems()] == [("E002", 'DELAYQ["HTTP"]')]


def test_secrets_are_not_in_what_the_settings_print(http):
    http(SECRETS={"partner": SECRET, "token": "very-secret"}, PROXY="http://user:very-secret@proxy.internal:3128")
    assert "very-secret" not in repr(conf.get())
    assert SECRET.removeprefix("whsec_") not in repr(conf.get())


def test_a_secret_may_be_without_the_signs_that_fill_it_up(http):
    assert problems(http, SECRETS={"partner": "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo"}) == {}


def test_e004_a_queue_that_nobody_serves(http):
    http(QUEUE="webhooks")
    assert [(one.id, "django_delayq.deliver uses the queue 'webhooks'" in one.msg) for one in check_tasks()] == [("delayq.E004", True)]


def test_e037_no_urllib3(monkeypatch):
    assert delivery.check_delivery() == []
    monkeypatch.setattr(delivery, "find_spec", lambda _name: None)
    (found,) = delivery.check_delivery()
    assert (found.id, found.hint) == ("delayq.E037", 'Run pip install "django-delayq[http]".')


@pytest.mark.parametrize("network", ["127.0.0.0/8", "0.0.0.0/0", "::/0", "169.254.169.254", "fe80::/10", "::1"])
def test_w021_an_allowed_network_that_leads_inside(http, network):
    http(ALLOW=["10.1.0.0/16", "fd00::/64", network])
    (found,) = delivery.check_allowed()
    assert found.id == "delayq.W021"


def test_checks_of_deliveries_say_nothing_where_there_are_none(settings):
    settings.DELAYQ = {name: value for name, value in settings.DELAYQ.items() if name != "HTTP"}
    assert delivery.check_delivery() == delivery.check_allowed() == []
