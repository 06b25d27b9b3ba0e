"""The signature of the Standard Webhooks: made and verified, compared with the reference library, and rejected when it is wrong."""

from __future__ import annotations

from email.message import Message

import pytest
from django.test import RequestFactory

import django_delayq
from django_delayq import ConfigError, clock
from django_delayq.contrib.http import SignatureRefused, verify
from django_delayq.targets.webhook import signatures
from tests.conftest import missing
from tests.targets.conftest import SECRET

OTHER = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="
ID, STAMP, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.fixture
def then(monkeypatch):
    """Sets the clock to the moment at which the example was signed."""
    monkeypatch.setattr(clock, "wall_ms", lambda: STAMP * 1000)


def headers(**changes: str) -> dict[str, str]:
    return {"Webhook-Id": ID, "Webhook-Timestamp": str(STAMP), "Webhook-Signature": SIGNATURE} | {
        name.replace("_", "-"): value for name, value in changes.items()
    }


def reference():
    try:
        import standardwebhooks
    except ImportError:
        missing("the package standardwebhooks is not installed")
    return standardwebhooks


def test_the_example_is_signed_as_it_is():
    assert signatures(ID, STAMP, BODY, [SECRET]) == SIGNATURE


def test_the_example_is_believed(then):
    told = verify(headers(), SECRET, body=BODY)
    assert (told.id, told.signed_at.timestamp()) == (ID, STAMP)


@pytest.mark.django_db
def test_the_reference_library_believes_a_delivery(delayq, host):
    standardwebhooks = reference()
    partner = host()
    django_delayq.deliver(partner.url(), json={"name": "Zoë"}, secret="partner")
    delayq.run_due()
    (request,) = partner.requests
    assert standardwebhooks.Webhook(SECRET).verify(request.body, request.headers) == {"name": "Zoë"}
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(OTHER).verify(request.body, request.headers)


def test_what_the_reference_library_signs_is_believed():
    from datetime import UTC, datetime

    standardwebhooks = reference()
    now = datetime.now(UTC)
    signed = standardwebhooks.Webhook(SECRET).sign(ID, now, BODY.decode())
    assert verify(headers(Webhook_Timestamp=str(int(now.timestamp())), Webhook_Signature=signed), SECRET, body=BODY).id == ID


@pytest.mark.django_db
def test_while_a_secret_changes_receivers_may_know_either(delayq, host, http):
    http(SECRETS={"partner": [OTHER, SECRET]})
    partner = host()
    django_delayq.deliver(partner.url(), data=b"\xff\x00", secret="partner")
    delayq.run_due()
    (request,) = partner.requests
    assert request.body == b"\xff\x00"
    for secret in (SECRET, OTHER):
        assert verify(request.headers, secret, body=request.body)
    assert request.headers["webhook-signature"].count("v1,") == 2


def test_a_request_of_django_is_enough(then):
    request = RequestFactory().post("/hook", BODY, content_type="application/json", headers=headers())
    assert verify(request, [OTHER, SECRET]).id == ID


def test_the_headers_of_http_server_are_enough(then):
    message = Message()
    for name, value in headers().items():
        message[name] = value
    assert verify(message, SECRET, body=BODY).id == ID


class PairHeaders:
    """Headers as in Flask: not a Mapping, and iteration yields pairs."""

    def __iter__(self):
        return iter(headers().items())

    def items(self):
        return iter(self)


def test_the_headers_of_flask_are_enough(then):
    assert verify(PairHeaders(), SECRET, body=BODY).id == ID


@pytest.mark.parametrize(
    ("changes", "body", "code"),
    [
        ({"Webhook_Id": "msg_other"}, BODY, "signature_wrong"),
        ({"Webhook_Signature": "v1,AAAA"}, BODY, "signature_wrong"),
        ({"Webhook_Signature": SIGNATURE.replace("v1,", "v1a,")}, BODY, "signature_wrong"),
        ({"Webhook_Signature": "é ,, v1"}, BODY, "signature_wrong"),
        ({"Webhook_Id": "\ud800", "Webhook_Signature": "v1,\ud800"}, BODY, "signature_wrong"),
        ({"Webhook_Signature": "v1,x " * 30 + SIGNATURE}, BODY, "signature_wrong"),
        ({}, BODY + b" ", "signature_wrong"),
        ({}, b"", "signature_wrong"),
        ({"Webhook_Timestamp": str(STAMP + 1)}, BODY, "signature_wrong"),
        ({"Webhook_Timestamp": "soon"}, BODY, "timestamp_wrong"),
        ({"Webhook_Timestamp": "1" * 5000}, BODY, "timestamp_wrong"),
        ({"Webhook_Timestamp": str(STAMP - 301)}, BODY, "timestamp_old"),
        ({"Webhook_Timestamp": str(STAMP + 301)}, BODY, "timestamp_new"),
        ({"Webhook_Id": ""}, BODY, "header_missing"),
        ({"Webhook_Timestamp": ""}, BODY, "header_missing"),
        ({"Webhook_Signature": ""}, BODY, "header_missing"),
    ],
)
def test_what_is_wrong_is_said_by_a_code(then, changes, body, code):
    with pytest.raises(SignatureRefused) as refused:
        verify(headers(**changes), SECRET, body=body)
    assert refused.value.code == code
    assert SECRET.removeprefix("whsec_") not in str(refused.value)


def test_a_request_that_was_sent_again_is_refused_after_the_tolerance(monkeypatch):
    monkeypatch.setattr(clock, "wall_ms", lambda: (STAMP + 100) * 1000)
    assert verify(headers(), SECRET, body=BODY, tolerance="2m")
    with pytest.raises(SignatureRefused, match="100 s ago, and 60 s are tolerated"):
        verify(headers(), SECRET, body=BODY, tolerance="1m")


@pytest.mark.parametrize("secrets", ["partner", [], ["whsec_"], "whsec_QUJD", "whsec_no base64"])
def test_a_secret_that_is_none_is_a_mistake_of_the_project(then, secrets):
    with pytest.raises(ConfigError, match="secret"):
        verify(headers(), secrets, body=BODY)


def test_headers_without_a_body_are_a_mistake_of_the_project(then):
    with pytest.raises(ConfigError, match="body="):
        verify(headers(), SECRET)
