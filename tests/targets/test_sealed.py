"""TLS: the socket connects to an address, and the certificate is checked against the name."""

from __future__ import annotations

import socket
import threading

import pytest

import django_delayq
from django_delayq.models import Attempt
from tests.security.test_tls import certify
from tests.targets.receivers import Exchange, answer, drip

pytestmark = pytest.mark.django_db

deliver = django_delayq.deliver


def told(job) -> str:
    return Attempt.objects.get(job_id=job.id, number=1).message


def test_handshake_host_and_certificate_use_the_name(delayq, host, sealed):
    partner = host(answer(200), context=sealed)
    job = deliver(partner.url(host="localhost"), json={"order": 7}, secret="partner")
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    assert partner.names == ["localhost"]
    assert partner.requests[0].headers["host"] == f"localhost:{partner.port}"
    assert job.state == "succeeded"


def test_a_connection_under_tls_is_used_again(delayq, host, sealed):
    partner = host(context=sealed)
    for _ in range(3):
        deliver(partner.url(host="localhost"), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"] * 3
    assert partner.connections == 1


def test_a_certificate_of_another_name_is_a_failed_attempt_and_nothing_is_sent(delayq, host, sealed, monkeypatch):
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _name, *args, **options: real("127.0.0.1", *args, **options))
    partner = host(context=sealed)
    job = deliver(partner.url(host="partner.example"), json=1, secret="partner")
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert "could not prove its identity" in told(job)
    assert "Hostname mismatch" in told(job)
    assert (partner.names, partner.requests) == (["partner.example"], [])


def test_an_authority_that_nobody_believes_is_a_failed_attempt(delayq, host, sealed, http, tmp_path):
    http(CA=certify(tmp_path).authority)
    partner = host(context=sealed)
    job = deliver(partner.url(host="localhost"), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert "could not prove its identity" in told(job)
    assert partner.requests == []


def test_plain_words_in_place_of_tls_are_a_failed_attempt(delayq, sealed):
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def say() -> None:
            with plain.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=say)
        thread.start()
        job = deliver(f"https://localhost:{plain.getsockname()[1]}/", json=1)
        assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
        thread.join()
    assert "could not prove its identity" in told(job) or "closed the connection" in told(job)


def test_a_handshake_that_hangs_ends(delayq, sealed, http):
    http(CONNECT="200ms")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        job = deliver(f"https://localhost:{silent.getsockname()[1]}/", json=1)
        assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert "did not answer within" in told(job)


def test_a_drip_under_tls_ends_with_the_time_for_the_whole(delayq, host, sealed):
    partner = host(drip(b"HTTP/1.1 200 OK\r\nA: "), context=sealed)
    job = deliver(partner.url(host="localhost"), json=1, timeout="300ms")
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert "did not answer within" in told(job)


def test_from_https_to_http_no_redirect_is_followed(delayq, host, sealed):
    open_one = host()
    partner = host(answer(307, Location=open_one.url()), context=sealed)
    deliver(partner.url(host="localhost"), json=1, redirects=5)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert open_one.requests == []


def test_a_drip_behind_a_proxy_under_tls_ends_with_the_time_for_the_whole(delayq, host, sealed, http):
    def say(exchange: Exchange) -> str:
        exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
        exchange.connection.recv(1)  # the handshake with the host after the proxy has begun
        return drip(b"\x16\x03\x03\x04\x00", b"\0")(exchange)  # a KB is to come

    proxy = host(say, context=sealed)
    http(PROXY=proxy.url("", host="localhost"), CONNECT="200ms")
    job = deliver("https://partner.example/hook", json=1, timeout="1s")
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert "did not answer within" in told(job)
