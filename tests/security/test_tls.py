"""Connections by TLS and password, to a server that accepts no other connections."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.link import connect
from tests import servers
from tests.conftest import missing
from tests.links import opened
from tests.ports import free_port
from tests.store.board import Board
from tests.topologies import SentinelServer
from tests.worker.conftest import Shop, eventually

PASSWORD = "p@ss/wörd"
BACKENDS = ("django_redis.cache.RedisCache", "django.core.cache.backends.redis.RedisCache")


@dataclass(frozen=True)
class Certificates:
    """An invented authority, and the certificate that it has signed for localhost."""

    authority: str
    certificate: str
    key: str


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Certificates:
    return certify(tmp_path_factory.mktemp("tls"))


def certify(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> Certificates:
    if shutil.which("openssl") is None:
        missing("no openssl on PATH, which makes the certificates")

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    # Python 3.13 requires an authority that may sign, and a certificate that names its signer.
    may_sign = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    run("req", "-x509", *key, *may_sign, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=tests", "-days", "2")
    run("req", *key, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=localhost")
    (folder / "names").write_text(f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n")
    run(
        "x509",
        "-req",
        "-in",
        "request.pem",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "names",
        "-out",
        "cert.pem",
    )
    return Certificates(*(str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")))


class TlsServer(servers.RedisServer):
    """A server that speaks only TLS over TCP. The unix socket stays for the test itself."""

    def __init__(self, certificates: Certificates, **options: str) -> None:
        self.tls_port = free_port()
        files = {
            "tls_ca_cert_file": certificates.authority,
            "tls_cert_file": certificates.certificate,
            "tls_key_file": certificates.key,
        }
        super().__init__(tls_port=str(self.tls_port), **{"tls_auth_clients": "no", **files, **options})


@pytest.fixture
def tls(certificates) -> Iterator[Callable[..., TlsServer]]:
    made: list[TlsServer] = []

    def start(**options: str) -> TlsServer:
        server = TlsServer(certificates, **options)
        made.append(server)
        try:
            server.start()
        except RuntimeError as error:
            if "tls" not in str(error).lower():
                raise
            missing(f"{server.program} was built without TLS")
        return server

    yield start
    for server in made:
        server.stop()


def specs(server: TlsServer, certificates: Certificates) -> dict[str, Any]:
    user = f"{servers.USER}:{servers.PASSWORD}@localhost:{server.tls_port}"
    return {
        "url": f"rediss://{user}/0?ssl_ca_certs={quote(certificates.authority)}",
        "options": {"URL": f"rediss://{user}/0", "OPTIONS": {"ssl_ca_certs": certificates.authority}},
        "user in options": {
            "URL": f"rediss://localhost:{server.tls_port}/0",
            "OPTIONS": {
                "ssl_ca_certs": certificates.authority,
                "username": servers.USER,
                "password": servers.PASSWORD,
            },
        },
    }


@pytest.mark.parametrize("way", ["url", "options", "user in options"])
def test_a_rediss_address_works(tls, certificates, way):
    server = tls()
    link = connect(specs(server, certificates)[way])
    board = Board(opened(server.url), link)
    assert board.put(1) == "created"
    assert len(board.claim().jobs) == 1
    link.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_alias_lends_its_certificates_and_its_password(tls, certificates, settings, backend):
    server = tls()
    location = f"rediss://{servers.USER}:{servers.PASSWORD}@localhost:{server.tls_port}/0"
    authority = {"ssl_ca_certs": certificates.authority}
    options = {"CONNECTION_POOL_KWARGS": authority} if "django_redis" in backend else authority
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}}
    link = connect("default")
    assert Board(opened(server.url), link).put(1) == "created"
    assert servers.PASSWORD not in link.where
    link.close()


@pytest.mark.parametrize("way", ["url", "options"])
def test_by_sentinel_both_are_reached_by_tls_and_both_names_are_looked_at(tls, certificates, request, tmp_path, way):
    server = tls()
    files = {"tls_ca_cert_file": certificates.authority, "tls_cert_file": certificates.certificate, "tls_key_file": certificates.key}
    master = SimpleNamespace(port=server.tls_port)
    tls_port = str(free_port())
    sentinel = SentinelServer(master, quorum=1, tls_port=tls_port, tls_auth_clients="no", tls_replication="yes", **files)
    request.addfinalizer(sentinel.stop)
    sentinel.start()

    def spec(authority: str, port: str = tls_port) -> Any:
        url = f"rediss+sentinel://{servers.USER}:{servers.PASSWORD}@localhost:{port}/mymaster/0"
        return f"{url}?ssl_ca_certs={quote(authority)}" if way == "url" else {"URL": url, "OPTIONS": {"ssl_ca_certs": authority}}

    link = connect(spec(certificates.authority))
    assert Board(opened(server.url), link).put(1) == "created"
    link.close()
    before = auths(server)
    with pytest.raises(StoreUnavailable, match=r"no Sentinel responds .*(?i:certificate)") as error:
        connect(spec(certify(tmp_path).authority)).execute("PING")
    assert servers.PASSWORD not in str(error.value)
    with pytest.raises(StoreUnavailable, match="no Sentinel responds"):
        connect(spec(certificates.authority, str(sentinel.port))).execute("PING")  # that server speaks no TLS
    assert auths(server) == before


def test_a_server_of_another_authority_is_refused(tls, tmp_path):
    server, others = tls(), certify(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate") as error:
        connect(specs(server, others)["url"]).execute("PING")
    assert servers.PASSWORD not in str(error.value)


# A trusted certificate for another name. Its owner could be a man in the middle.


def auths(server: TlsServer) -> int:
    """Returns how often a password was sent to that server."""
    stats = opened(server.url).execute("INFO", "commandstats").decode()
    return sum(int(calls) for calls in re.findall(r"cmdstat_(?:auth|hello):calls=(\d+)", stats))


@pytest.mark.parametrize("way", ["url", "options", "user in options", "alias"])
def test_a_server_of_another_name_is_refused_before_a_password_is_sent(tls, tmp_path, settings, way):
    others = certify(tmp_path, "DNS:other.example")
    server = tls(tls_cert_file=others.certificate, tls_key_file=others.key)
    ways = specs(server, others)
    settings.CACHES = {
        "default": {
            "BACKEND": BACKENDS[0],
            "LOCATION": ways["options"]["URL"],
            "OPTIONS": {"CONNECTION_POOL_KWARGS": {"ssl_ca_certs": others.authority}},
        }
    }
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate|hostname"):
        connect(ways.get(way, "default")).execute("PING")
    assert auths(server) == 0


@pytest.mark.parametrize("told", [{"ssl_cert_reqs": "none"}, {"ssl_check_hostname": False}])
def test_who_says_that_the_name_is_not_to_be_looked_at_is_obeyed(tls, tmp_path, told):
    others = certify(tmp_path, "DNS:other.example")
    server = tls(tls_cert_file=others.certificate, tls_key_file=others.key)
    spec = specs(server, others)["options"]
    spec["OPTIONS"] |= told
    link = connect(spec)
    assert link.execute("PING") == b"PONG"
    assert auths(server) == 1
    link.close()


def test_a_server_that_wants_a_certificate_gets_one(tls, certificates):
    server = tls(tls_auth_clients="yes")
    spec = specs(server, certificates)["options"]
    with pytest.raises(StoreUnavailable):
        connect(spec).execute("PING")
    spec["OPTIONS"] |= {"ssl_certfile": certificates.certificate, "ssl_keyfile": certificates.key}
    link = connect(spec)
    assert link.execute("PING") == b"PONG"
    link.close()


def test_plain_words_to_a_tls_port_are_unavailable_and_do_not_hang(tls):
    server = tls()
    with pytest.raises(StoreUnavailable):
        connect(f"redis://localhost:{server.tls_port}", timeout=2).execute("PING")


def test_a_worker_wakes_by_tls(tls, certificates, shop: Shop):
    """The mover waits on the bare socket, below TLS. It must not wait for data that TLS has read ahead."""
    server = tls()
    shop.url, shop.link = server.url, opened(server.url)
    shop.settings = {"REDIS": specs(server, certificates)["options"]}
    worker = shop.work()
    eventually(lambda: shop.link.execute("HLEN", "delayq:{workers}"))
    for number in range(20):
        shop.put("count", number)
        eventually(lambda number=number: number in shop.counts())
    shop.put_many("count", [(n,) for n in range(20, 320)], delay_ms=300)
    eventually(lambda: len(shop.counts()) == 320)
    worker.signal(15)
    assert worker.wait() == 0, worker.text()
    assert "not available" not in worker.text()


# passwords


@pytest.mark.parametrize("way", ["url", "options", "alias"])
def test_a_password_of_the_default_user(own_redis, settings, way):
    server = own_redis(port=True)
    opened(server.url).execute("CONFIG", "SET", "requirepass", PASSWORD)
    with_password = f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/1"
    settings.CACHES = {
        "default": {
            "BACKEND": BACKENDS[0],
            "LOCATION": f"{server.tcp_url}/1",
            "OPTIONS": {"PASSWORD": PASSWORD},
        }
    }
    spec = {
        "url": with_password,
        "options": {"URL": f"{server.tcp_url}/1", "OPTIONS": {"password": PASSWORD}},
        "alias": "default",
    }[way]
    link = connect(spec)
    assert link.execute("PING") == b"PONG"
    assert PASSWORD not in link.where
    link.close()
    with pytest.raises(StoreUnavailable, match=r"(?i)auth"):
        connect(server.tcp_url).execute("PING")


def test_a_password_does_not_come_out_of_a_worker(own_redis, shop: Shop):
    server = own_redis()
    shop.url = server.url
    shop.settings = {"REDIS": {"URL": server.url, "OPTIONS": {"password": PASSWORD, "username": "nobody"}}}
    worker = shop.work("--burst")
    assert worker.wait() == 1
    assert "invalid username-password pair" in worker.text()
    assert PASSWORD not in worker.text()
    assert json.dumps(PASSWORD)[1:-1] not in worker.text()
