"""Hosts that disconnect, hang, drip, flood, and redirect."""

from __future__ import annotations

import base64
import html
import socket
from datetime import timedelta
from email.utils import format_datetime
from urllib.parse import quote

import pytest
import urllib3

import django_delayq
from django_delayq.contrib.http import circuits, header_secret
from django_delayq.models import Attempt, Event, Job
from tests.targets.receivers import Exchange, answer, drip, drop, echo, flood, half, hang

pytestmark = pytest.mark.django_db

deliver = django_delayq.deliver


def first(job) -> Attempt:
    return Attempt.objects.get(job_id=job.id, number=1)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        pytest.param(drop, "before it had answered", id="closes without a word"),
        pytest.param(half(b"HTTP/1.1 20"), "before it had answered", id="half a status"),
        pytest.param(half(b"nonsense\r\n\r\n"), "before it had answered", id="no HTTP at all"),
        pytest.param(half(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200), "before it had answered", id="headers without end"),
        pytest.param(half(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000), "before it had answered", id="an endless header"),
        pytest.param(hang, "did not answer within", id="hangs"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\nA: "), "did not answer within", id="drips headers"),
        pytest.param(drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n", every=0), "did not answer within", id="says to go on for ever"),
    ],
)
def test_no_answer_is_a_failed_attempt_and_the_next_one_succeeds(delayq, host, bad, told):
    partner = host(bad, answer(200))
    job = deliver(partner.url(), json=1, backoff="3m", timeout="300ms")
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert told in first(job).message
    assert [ran.outcome for ran in delayq.advance("3m")] == ["ack"]
    assert [request.body for request in partner.requests] == [b"1", b"1"]


def test_silence_ends_it_before_the_time_for_the_whole_is_over(delayq, host, http):
    http(READ="200ms", TIMEOUT="1h")
    partner = host(hang)
    deliver(partner.url(), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]


def test_a_host_that_is_not_there_is_a_failed_attempt(delayq):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    job = deliver(f"http://127.0.0.1:{port}/", json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert "could not be reached: ConnectionRefusedError" in first(job).message


def test_a_name_without_an_address_is_a_failed_attempt(delayq, monkeypatch):
    def nothing(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nothing)
    job = deliver("https://partner.example/hook", json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert "partner.example:443 has no address: gaierror" in first(job).message


# answers that begin well


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        pytest.param(half(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nyes"), "yes", id="cut off"),
        pytest.param(half(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n"), "yes", id="cut off between chunks"),
        pytest.param(half(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n"), "", id="chunks that are none"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nyes"), "yes", id="drips for ever"),
    ],
)
def test_a_host_that_has_said_200_has_taken_it_whatever_comes_behind_that(delayq, host, said, kept):
    partner = host(said)
    job = deliver(partner.url(), json=1, timeout="300ms")
    assert [ran.outcome for ran in delayq.drain()] == ["ack"]
    result = Job.objects.get(pk=job.id).result
    assert (result["status"], result["complete"]) == (200, False)
    assert result["answer"].startswith(kept)


def test_of_100_mb_the_first_2_kb_are_kept_and_no_more_than_is_set_is_read(delayq, host):
    partner = host(flood(100 * 1024 * 1024))
    job = deliver(partner.url(), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    result = Job.objects.get(pk=job.id).result
    assert (result["answer"], result["complete"]) == ("a" * 2048, False)


def test_what_is_small_on_the_way_does_not_become_large_here(delayq, host):
    partner = host(answer(200, b"\x1f\x8b not unpacked", Content_Encoding="gzip"))
    job = deliver(partner.url(), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert "not unpacked" in Job.objects.get(pk=job.id).result["answer"]
    assert partner.requests[0].headers["accept-encoding"] == "identity"


def test_a_connection_is_used_again_and_another_one_is_made_when_it_was_closed(delayq, host):
    partner = host(answer(200), answer(200), half(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), answer(200))
    for _ in range(4):
        deliver(partner.url(), json=1)
        assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert partner.connections == 2


EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"


@pytest.mark.parametrize("ahead", [EARLY, EARLY * 3, b"HTTP/1.1 102 Processing\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" + EARLY])
def test_what_a_host_says_ahead_of_its_answer_is_not_the_answer(delayq, host, ahead):
    def say(exchange: Exchange) -> None:
        exchange.send(ahead)
        answer(500 if exchange.request.json == "refused" else 200, "so it is")(exchange)

    partner = host(say)
    taken, refused = deliver(partner.url(), json="taken"), deliver(partner.url(), json="refused")
    assert sorted(ran.outcome for ran in delayq.run_due()) == ["ack", "retry"]
    assert (taken.state, refused.state) == ("succeeded", "scheduled")
    assert partner.connections == 1
    assert Job.objects.get(pk=taken.id).result["answer"] == "so it is"


def test_a_host_that_goes_over_to_another_protocol_has_not_answered(delayq, host):
    partner = host(half(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"))
    job = deliver(partner.url(), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert "before it had answered" in first(job).message


# redirects


def leads(status: int, to: str):
    return answer(status, "elsewhere", Location=to)


@pytest.mark.parametrize("status", [301, 302, 303])
def test_these_redirects_are_never_followed(delayq, host, status):
    other = host()
    partner = host(leads(status, other.url()))
    job = deliver(partner.url(), json=1, redirects=5)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert f"answered {status}" in first(job).message
    assert other.requests == []


@pytest.mark.parametrize("status", [307, 308])
def test_these_are_followed_where_it_is_allowed_with_method_and_body(delayq, host, status):
    other = host()
    partner = host(leads(status, other.url("/new?b=2")))
    deliver(partner.url(), json={"order": 7}, method="PUT", redirects=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert (other.requests[0].line, other.requests[0].json) == ("PUT /new?b=2 HTTP/1.1", {"order": 7})


def test_a_chain_of_redirects_ends_where_it_was_said(delayq, host):
    partner = host(leads(307, "/again"))
    job = deliver(partner.url(), json=1, redirects=3)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert len(partner.requests) == 4
    assert "which is a redirect" in first(job).message


def test_a_chain_of_302_ends_at_its_first(delayq, host):
    partner = host(leads(302, "/again"))
    deliver(partner.url(), json=1, redirects=3)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert len(partner.requests) == 1


def test_a_redirect_within_the_host_is_signed_and_one_to_another_host_bears_no_secret(delayq, host, http, settings):
    http(SECRETS={**settings.DELAYQ["HTTP"]["SECRETS"], "token": "very-secret-token"})
    other = host()
    partner = host(leads(307, "/again"), leads(307, other.url()))
    headers = {"Authorization": {"secret": "token", "prefix": "Bearer "}, "X-Plain": "yes"}
    deliver(partner.url(), json=1, secret="partner", headers=headers, redirects=2)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    for request in partner.requests:
        assert request.headers["authorization"] == "Bearer very-secret-token"
        assert "webhook-signature" in request.headers
    (there,) = other.requests
    assert there.headers["x-plain"] == "yes"
    assert not {"authorization", "webhook-id", "webhook-timestamp", "webhook-signature"} & there.headers.keys()


@pytest.mark.parametrize(
    ("to", "told"),
    [
        ("http://169.254.169.254/latest/meta-data/", "169.254.169.254 (metadata)"),
        ("http://[::ffff:10.0.0.1]/", "(private)"),
        ("http://[::ffff:a9fe:a9fe]/", "(metadata)"),
        ("http://10.0.0.1/", "(private)"),
        ("http://user:word@127.0.0.1/", "a user or a password"),
        ("file:///etc/passwd", "not to 'file'"),
        ("gopher://127.0.0.1/", "not to 'gopher'"),
    ],
)
def test_a_redirect_inside_ends_the_delivery_at_once(delayq, host, to, told):
    job = deliver(host(leads(307, to)).url(), json=1, redirects=5)
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]
    assert told in first(job).message
    assert job.state == "failed"


def test_a_redirect_to_a_mapped_loopback_is_judged_as_loopback(delayq, host, http):
    http(ALLOW=["127.0.0.1/32"])  # the partner itself
    other = host()
    job = deliver(host(leads(307, f"http://[::ffff:127.0.0.2]:{other.port}/")).url(), json=1, redirects=5)
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]
    assert "(loopback)" in first(job).message
    assert other.connections == 0


# Retry-After


def test_retry_after_in_seconds_is_obeyed(delayq, host):
    partner = host(answer(503, Retry_After="120"), answer(200))
    deliver(partner.url(), json=1, backoff="15s")
    delayq.run_due()
    assert delayq.advance("119s") == []
    assert [ran.outcome for ran in delayq.advance("1s")] == ["ack"]


def test_retry_after_as_a_date_is_obeyed(delayq, host):
    partner = host(lambda exchange: answer(429, Retry_After=format_datetime(delayq.now + timedelta(hours=2), usegmt=True))(exchange))
    deliver(partner.url(), json=1, backoff="15s", max_attempts=2)
    delayq.run_due()
    assert delayq.advance("119m") == []
    assert len(delayq.advance("1m")) == 1


@pytest.mark.parametrize("asked", ["9999999999999", "Fri, 31 Dec 2399 23:59:59 GMT"])
def test_a_day_is_the_most_that_a_host_may_ask_for(delayq, host, asked):
    deliver(host(answer(503, Retry_After=asked), answer(200)).url(), json=1)
    delayq.run_due()
    assert delayq.advance("23h59m") == []
    assert [ran.outcome for ran in delayq.advance("2m")] == ["ack"]


@pytest.mark.parametrize("asked", ["soon", "-5", "", "1e9", "٣", "Mon, 99 Foo 2026 00:00:00 GMT"])
def test_a_retry_after_that_says_nothing_leaves_the_ladder_alone(delayq, host, asked):
    deliver(host(answer(503, Retry_After=asked.encode().decode("latin-1")), answer(200)).url(), json=1, backoff="7m")
    delayq.run_due()
    assert delayq.advance("5m") == []
    assert [ran.outcome for ran in delayq.advance("4m")] == ["ack"]


def test_a_host_that_asks_for_longer_than_the_job_may_wait_ends_it_at_its_expiry(delayq, host):
    partner = host(answer(503, Retry_After="7200"), answer(200))
    job = deliver(partner.url(), json=1, expires="30m")
    delayq.run_due()
    delayq.advance("31m")
    assert job.state == "failed"
    assert len(partner.requests) == 1


def test_the_last_attempt_fails_whatever_the_host_asks_for(delayq, host):
    job = deliver(host(answer(503, Retry_After="60")).url(), json=1, max_attempts=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]
    assert job.state == "failed"


# secrets


TOKEN = "Zm9v/YmFyYmF6+cXV4/c2VjcmV0"


def forms(secret: str) -> list[str]:
    """Returns the forms of a secret in JSON, HTML, URLs, base64, hexadecimal digits and reversed, whole and shortened."""
    base64s = [base64.b64encode(b"x" * before + secret.encode()).decode()[4:-4] for before in range(3)]
    whole = [
        secret,
        secret.replace("/", "\\/"),
        html.escape(secret).replace("/", "&#x2F;"),
        quote(secret, safe=""),
        secret.encode().hex(),
    ]
    return [*whole, *base64s, secret[::-1], secret[:-1], secret[1:], secret.lower()]


def told_of(job, caplog) -> str:
    """Returns all stored data about a delivery, and all log output."""
    rows = [
        *Attempt.objects.filter(job_id=job.id).values(),
        *Job.objects.filter(pk=job.id).values(),
        *Event.objects.filter(job_id=job.id).values(),
    ]
    return f"{rows} {caplog.text} {circuits.snapshot()}"


def repeats(status: int, cut: bool):
    """Answers with every form of the secret, one per line. `cut`: the host breaks off within the last form."""
    body = "\n".join(forms(TOKEN)).encode()
    text = f"HTTP/1.1 {status} No\r\nContent-Length: {len(body) + 100 * cut}\r\n\r\n".encode() + body
    return half(text[:-1]) if cut else half(text)


def location(status: int, to: str):
    return answer(status, "", Location=to)


BROKEN = f"HTTP/1.1 401 No\r\nContent-Length: 0\r\n{TOKEN} stands where a header should\r\nX: 1\r\n\r\n".encode()


@pytest.mark.parametrize(
    "bad",
    [
        *(
            pytest.param(repeats(status, cut), id=f"{status}{' cut short' if cut else ''}")
            for status in (200, 302, 401, 410)
            for cut in (False, True)
        ),
        pytest.param(half(BROKEN), id="a broken header"),
        pytest.param(half(f"HTTP/1.1 {TOKEN}\r\n\r\n".encode()), id="a broken status"),
        pytest.param(answer(503, TOKEN, Retry_After=TOKEN, Date=TOKEN), id="Retry-After"),
        pytest.param(location(307, f"{TOKEN[:4]}://127.0.0.1/"), id="the scheme of a Location"),
        pytest.param(location(307, f"http://127.0.0.1:{TOKEN}/"), id="the port of a Location"),
        pytest.param(location(307, f"http://{TOKEN[:4]}.invalid/"), id="the host of a Location"),
        pytest.param(location(307, f"http://{TOKEN[:4]}@127.0.0.1/"), id="the user of a Location"),
        pytest.param(location(307, "http://10.90.109.57/"), id="the address of a Location"),
    ],
)
@pytest.mark.parametrize("sent", ["header", "query", "proxy"])
def test_a_secret_that_the_host_repeats_in_any_form_is_kept_by_nobody(delayq, host, http, caplog, bad, sent):
    caplog.set_level("DEBUG", "django_delayq")
    caplog.set_level("WARNING")
    partner = host(bad)
    http(
        SECRETS={"token": TOKEN},
        **({"PROXY": f"http://user:{quote(TOKEN, safe='')}@127.0.0.1:{partner.port}"} if sent == "proxy" else {}),
    )
    headers = {"Authorization": header_secret("token", prefix="Bearer ")} if sent == "header" else {}
    job = deliver(partner.url("/hook?a=1" if sent == "query" else "/hook"), json=1, headers=headers, max_attempts=1, redirects=1)
    delayq.run_due()
    told = told_of(job, caplog).lower()
    assert [
        form for form in (*forms(TOKEN), f"{TOKEN[:4]}:", f"{TOKEN[:4]}.invalid", TOKEN[:4], "10.90.109.57") if form.lower() in told
    ] == []
    assert job.state in ("failed", "succeeded")


def test_no_log_of_urllib3_has_the_query_of_a_delivery_or_the_target_of_a_redirect(delayq, host, caplog):
    caplog.set_level("DEBUG", "urllib3")
    last = host()
    partner = host(answer(307, Location=last.url(f"/{TOKEN}?key={TOKEN}")))
    deliver(partner.url(f"/hook?key={TOKEN}"), json=1, redirects=1)
    delayq.run_due()
    assert f" /{TOKEN}?" in last.requests[0].line
    assert TOKEN not in caplog.text
    urllib3.PoolManager().request("GET", last.url("/of-the-project"), retries=False)
    assert "/of-the-project" in caplog.text


def test_a_signature_sends_no_secret_so_the_answer_is_kept(delayq, host):
    job = deliver(host(echo).url(), json=1, secret="partner", max_attempts=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]
    assert "webhook-signature" in first(job).message


def test_an_answer_that_is_not_kept_is_told_by_its_status_and_size(delayq, host):
    job, taken = (deliver(host(answer(status, "x" * 5000)).url("/?a=1"), json=1, max_attempts=1) for status in (401, 200))
    assert sorted(ran.outcome for ran in delayq.run_due()) == ["ack", "fail"]
    assert "ms with 5000 bytes. They are not kept, because the request contained a secret." in first(job).message
    result = Job.objects.get(pk=taken.id).result
    assert (result["status"], result["size"], result["answer"], result["complete"]) == (200, 5000, "", False)


def test_a_secret_that_is_missing_here_is_no_attempt(delayq, host, http, settings):
    partner = host()
    http(SECRETS={})
    job = deliver(partner.url(), json=1, secret="partner")
    assert [ran.outcome for ran in delayq.run_due()] == ["snooze"]
    assert partner.requests == []
    http(SECRETS={"partner": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
    (ran,) = delayq.advance("2m")
    assert (ran.outcome, ran.attempt, job.state) == ("ack", 1, "succeeded")


def test_three_days_behind_its_date_a_delivery_without_its_secret_fails_by_its_attempts(delayq, host, http):
    http(SECRETS={})
    job = deliver(host().url(), json=1, secret="partner", max_attempts=1)
    delayq.travel(delayq.now + timedelta(days=3, minutes=1))
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]
    assert "'partner' is not in" in first(job).message


@pytest.mark.parametrize("bad", [drop, answer(307, Location="http://10.0.0.1/"), hang])
def test_no_frame_that_knows_the_headers_is_in_what_is_raised(delayq, host, http, settings, bad):
    http(SECRETS={"token": "very-secret-token"}, READ="200ms")
    deliver(host(bad).url(), json=1, headers={"X-Token": {"secret": "token"}}, redirects=1)
    (ran,) = delayq.run_due()
    error, seen = ran.error, []
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            seen.append(trace.tb_frame.f_globals["__name__"])
            trace = trace.tb_next
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert "django_delayq.targets.delivery" in seen
    assert not [name for name in seen if name.startswith(("urllib3", "http.", "django_delayq.targets.client"))]


def test_who_was_led_away_and_back_sends_no_secret_to_where_it_was_led(delayq, host):
    partner = host()
    away = host(leads(307, partner.url("/chosen-by-another")))
    partner.script[:] = [leads(307, away.url()), answer(200)]
    deliver(partner.url(), json=1, secret="partner", redirects=2)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert ["webhook-signature" in request.headers for request in partner.requests] == [True, False]


def test_a_redirect_may_be_an_answer_for_good(delayq, host, http):
    http(GONE=[308, 410])
    deliver(host(leads(308, "/moved")).url(), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]


def test_a_header_of_ones_own_stands_in_place_of_ours(delayq, host):
    partner = host()
    deliver(partner.url(), json=1, headers={"user-agent": "shop/1.0"})
    delayq.run_due()
    assert partner.requests[0].headers["user-agent"] == "shop/1.0"
