"""The partner: another company's web server, which receives paid orders. It is unreliable: for each order it answers 503 twice, for
some orders 429 or slowly, and sometimes it closes the connection without an answer. It verifies the signature, and handles each
webhook-id once.

    PARTNER_SECRET=whsec_… python partner.py --port 8001 --ledger partner.sqlite3
"""

import argparse
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))  # works without installing the package

from django_delayq.contrib.http import SignatureRefused, verify

LARGEST = 65_536  # bytes of a body
ASKED_IN_VAIN = 2  # times, each order
SLOWLY = 0.3  # seconds
LOST_FOR = 1  # seconds that its Retry-After asks for
TABLES = """
CREATE TABLE IF NOT EXISTS asked (webhook_id TEXT NOT NULL, order_id INTEGER NOT NULL, at REAL NOT NULL, answer INTEGER);
CREATE INDEX IF NOT EXISTS asked_id ON asked (webhook_id);
CREATE INDEX IF NOT EXISTS asked_order ON asked (order_id);
CREATE TABLE IF NOT EXISTS taken (webhook_id TEXT PRIMARY KEY, order_id INTEGER NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS taken_order ON taken (order_id);
"""


class PartnerLedger:
    """The requests with a valid signature, and the accepted orders. They are on disk before the answer. Threads share it."""

    def __init__(self, path):
        self.lock = threading.Lock()
        self.rows = sqlite3.connect(path, timeout=20, isolation_level=None, check_same_thread=False)
        self.rows.execute("PRAGMA journal_mode=WAL")
        self.rows.execute("PRAGMA synchronous=NORMAL")
        self.rows.executescript(TABLES)

    def asked(self, webhook_id, order_id, decide):
        """Stores a request and the answer of `decide(times, taken_before)`, a status or None, and accepts the order if the answer is
        not an error. Returns the status, whether the order was accepted now, and the number of requests. It is one transaction, so a
        repeated request sees the first one completely.
        """
        with self.lock:
            self.rows.execute("BEGIN IMMEDIATE")
            try:
                (times,) = self.rows.execute("SELECT COUNT(*) + 1 FROM asked WHERE webhook_id = ?", [webhook_id]).fetchone()
                before = self.rows.execute("SELECT 1 FROM taken WHERE webhook_id = ?", [webhook_id]).fetchone() is not None
                answer = decide(times, before)
                now = time.time()
                self.rows.execute("INSERT INTO asked VALUES (?, ?, ?, ?)", [webhook_id, order_id, now, answer])
                takes = not before and answer in (200, None)
                if takes:
                    self.rows.execute("INSERT INTO taken VALUES (?, ?, ?)", [webhook_id, order_id, now])
                self.rows.execute("COMMIT")
            except BaseException:
                self.rows.execute("ROLLBACK")
                raise
        return answer, takes, times


def mood(order_id):
    """The answer of the partner, as a function of the number of requests; None closes the connection. It depends on the number of the
    order, not on chance.
    """

    def decide(times, taken_before):
        if taken_before:
            return 200
        if times <= ASKED_IN_VAIN:
            return 503
        if order_id % 5 == 2 and times == ASKED_IN_VAIN + 1:
            return 429
        return None if order_id % 10 == 9 else 200

    return decide


class Desk(BaseHTTPRequestHandler):
    """One connection; urllib3 keeps it open."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece
    disable_nagle_algorithm = True
    timeout = 60
    ledger: PartnerLedger
    secrets: list

    def do_GET(self):
        """Answers whether the partner is up."""
        self.say(200, "the partner is there")

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LARGEST:
            self.close_connection = True
            return self.say(413, f"a body of at most {LARGEST} bytes, with its length")
        body = self.rfile.read(int(length))
        try:
            told = verify(dict(self.headers), self.secrets, body=body)
        except SignatureRefused as refused:
            note(f"refused, {refused.code}: whoever sent this does not know our secret")
            return self.say(401, refused.code)
        try:
            order_id = json.loads(body)["order"]
        except (ValueError, KeyError, TypeError):
            order_id = None
        if type(order_id) is not int:
            note(f"signed, but no order is in it (webhook-id {told.id})")
            return self.say(422, 'a JSON object with "order", a number')
        answer, takes, times = self.ledger.asked(told.id, order_id, mood(order_id))
        return self.answer(order_id, told.id, answer, takes, times)

    def answer(self, order_id, webhook_id, answer, takes, times):
        if answer == 503:
            note(f"order {order_id}: 503, we are busy (asked {times}×)")
            self.say(503, "busy; come back later")
        elif answer == 429:
            note(f"order {order_id}: 429, not so fast; again in {LOST_FOR} s (asked {times}×)")
            self.say(429, "not so fast", **{"Retry-After": str(LOST_FOR)})
        elif answer is None:
            note(f"order {order_id}: signature good, taken; and hung up before we said so (webhook-id {webhook_id})")
            self.close_connection = True
        elif not takes:
            note(f"order {order_id}: taken before, so nothing to do (webhook-id {webhook_id})")
            self.say(200, "taken before")
        else:
            slow = order_id % 7 == 3
            note(f"order {order_id}: signature good, taken{', and said so slowly' if slow else ''} (webhook-id {webhook_id})")
            if slow:
                time.sleep(SLOWLY)
            self.say(200, "taken")

    def say(self, status, text, **headers):
        content = f"{text}\n".encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Logs nothing: the partner prints its own lines, which say more."""


def note(line):
    print(f"{line}\n", end="", flush=True)


def main():
    asked = argparse.ArgumentParser(description="The partner of the example shop: takes signed webhooks, after some persuasion.")
    asked.add_argument("--port", type=int, default=8001)
    asked.add_argument("--ledger", required=True, help="its SQLite file; made if it is not there")
    options = asked.parse_args()
    secret = os.environ.get("PARTNER_SECRET")
    if not secret:
        asked.error("PARTNER_SECRET is not set: the secret of the shop's settings, whsec_…")
    Desk.ledger, Desk.secrets = PartnerLedger(options.ledger), [secret]
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Desk)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
