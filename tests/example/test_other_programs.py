"""The example's partner and warehouse, which represent programs of other companies."""

from __future__ import annotations

import ast
import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.example.partners import EXAMPLE, Partner
from tests.ports import free_port

PROGRAM = EXAMPLE / "warehouse.py"
OTHER = "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldA=="


@pytest.fixture(scope="module")
def partner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Partner]:
    with Partner(tmp_path_factory.mktemp("partner") / "ledger.sqlite3") as partner:
        yield partner


def taken(partner: Partner, order: int) -> list[tuple]:
    return partner.rows(f"SELECT webhook_id FROM taken WHERE order_id = {order}")


def statuses(partner: Partner, order: int, times: int) -> list[int]:
    return [partner.tell(f"w-{order}", {"order": order}).status for _ in range(times)]


def test_an_order_is_taken_at_the_third_time_and_once(partner):
    assert statuses(partner, 1, 5) == [503, 503, 200, 200, 200]
    assert taken(partner, 1) == [("w-1",)]
    assert "order 1: taken before, so nothing to do" in partner.log()


def test_some_orders_meet_a_429_that_says_when(partner):
    assert statuses(partner, 12, 2) == [503, 503]
    told = partner.tell("w-12", {"order": 12})
    assert (told.status, told.retry_after) == (429, "1")
    assert taken(partner, 12) == []
    assert statuses(partner, 12, 1) == [200]


def test_of_some_orders_it_hangs_up_when_it_has_taken_them_and_does_not_take_them_again(partner):
    assert statuses(partner, 19, 4) == [503, 503, 0, 200]
    assert taken(partner, 19) == [("w-19",)]
    assert [answer for (answer,) in partner.rows("SELECT answer FROM asked WHERE order_id = 19")] == [503, 503, None, 200]


def test_some_orders_are_answered_slowly_and_taken(partner):
    assert statuses(partner, 3, 3) == [503, 503, 200]
    assert "order 3: signature good, taken, and said so slowly" in partner.log()


def test_what_others_have_signed_is_refused_and_stands_in_no_ledger(partner):
    told = partner.tell("w-2", {"order": 2}, OTHER)
    assert (told.status, told.text) == (401, "signature_wrong")
    assert partner.rows("SELECT * FROM asked WHERE order_id = 2") == []
    assert "refused, signature_wrong" in partner.log()


def test_a_delivery_of_its_own_id_is_another_delivery(partner):
    statuses(partner, 21, 3)
    assert [partner.tell("another", {"order": 21}).status for _ in range(3)] == [503, 503, 200]
    assert len(taken(partner, 21)) == 2  # which the audit calls wrong


@pytest.mark.parametrize("body", [{"order": "4"}, {"order": True}, {}, [4], b"no json", b"\xff", b""])
def test_what_names_no_order_is_422(partner, body):
    assert partner.tell("w-strange", body).status == 422


def test_a_body_that_is_too_large_is_413_and_is_not_read(partner):
    with closing(http.client.HTTPConnection("127.0.0.1", partner.port, timeout=30)) as connection:
        connection.putrequest("POST", "/orders/")
        connection.putheader("Content-Length", "65537")
        connection.endheaders()  # and no byte of it comes
        assert connection.getresponse().status == 413


@pytest.mark.slow
def test_what_it_has_taken_outlives_it(tmp_path: Path):
    with Partner(tmp_path / "ledger.sqlite3") as partner:
        assert statuses(partner, 1, 3) == [503, 503, 200]
        partner.kill()
        partner.start()
        assert statuses(partner, 1, 1) == [200]
        assert taken(partner, 1) == [("w-1",)]
        partner.terminate()  # in order, as the demo does


def test_the_warehouse_imports_the_standard_library_only():
    tree = ast.parse(PROGRAM.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize("missing", ["QUEUE_URL", "QUEUE_TOKEN"])
def test_the_warehouse_names_a_missing_setting_and_how_to_get_it(tmp_path, missing):
    variables = {"QUEUE_URL": "http://127.0.0.1:1", "QUEUE_TOKEN": "dqg_none"}
    del variables[missing]
    done = started(tmp_path, variables)
    assert done.wait(30) == 2
    assert f"{missing} is not set. A token: manage.py delayq_gateway make warehouse" in done.stderr.read()
    done.stderr.close()
    done.stdout.close()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_the_warehouse_waits_for_the_gateway_and_ends_on_a_signal(tmp_path, sign):
    process = started(tmp_path, {"QUEUE_URL": f"http://127.0.0.1:{free_port()}/queue/v1", "QUEUE_TOKEN": "dqg_none"})
    try:
        lines = iter(process.stdout.readline, "")
        assert any("the gateway does not answer" in line for line in lines)
        process.send_signal(sign)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        assert process.stderr.read() == ""
        process.stderr.close()


def started(folder: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Starts the warehouse with only the standard library: -I ignores PYTHONPATH and the current folder."""
    command = [sys.executable, "-I", str(PROGRAM), "--ledger", str(folder / "ledger.sqlite3")]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
