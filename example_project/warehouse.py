"""The warehouse: another service, in plain Python without Django and django-delayq. It pulls messages from the shop's queue over the
gateway, packs the orders, and settles the messages. A message may be delivered twice, so it packs once per id.

    QUEUE_URL=http://127.0.0.1:8000/queue/v1 QUEUE_TOKEN=dqg_… python warehouse.py --ledger warehouse.sqlite3
"""

import argparse
import http.client
import json
import os
import signal
import sqlite3
import time
import urllib.error
import urllib.request

QUEUE = "warehouse"
BATCH = 50
WAIT = 30  # seconds that a pull may wait for messages; the gateway may choose less
PAUSE = 1  # seconds after an error
PACKING = 0.1  # seconds, a batch
TABLES = """
CREATE TABLE IF NOT EXISTS pulled (fence TEXT PRIMARY KEY, message_id TEXT NOT NULL, order_id INTEGER NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS pulled_order ON pulled (order_id);
CREATE TABLE IF NOT EXISTS packed (message_id TEXT PRIMARY KEY, order_id INTEGER NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS packed_order ON packed (order_id);
CREATE TABLE IF NOT EXISTS acked (message_id TEXT PRIMARY KEY, order_id INTEGER NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS acked_order ON acked (order_id);
"""


class Leaving:
    """SIGTERM and Ctrl-C end it at once while it waits, otherwise after it has settled its messages."""

    def __init__(self):
        self.asked, self.waits = False, 0
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, self.ask)

    def ask(self, *_):
        self.asked = True
        self.if_asked()

    def if_asked(self):
        if self.asked and self.waits:
            raise SystemExit(0)

    def __enter__(self):
        self.waits += 1
        self.if_asked()

    def __exit__(self, *_):
        self.waits -= 1


class Gateway:
    """The calls of the gateway. It repeats failed calls, which is safe, unless the gateway rejects them for good."""

    def __init__(self, url, token, leaving):
        self.leaving = leaving
        self.url = f"{url.rstrip('/')}/queues/{QUEUE}"
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(self, verb, body, patience=10):
        request = urllib.request.Request(f"{self.url}/{verb}", json.dumps(body).encode(), self.headers, method="POST")
        while True:
            try:
                with urllib.request.urlopen(request, timeout=patience) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as refusal:
                with refusal:
                    said = refusal.read().decode(errors="replace")
                if refusal.code < 500 and refusal.code != 429:
                    raise SystemExit(f"The gateway refuses {verb} for good: {refusal.code} {said}") from None
                pause = refusal.headers.get("Retry-After", "")
                pause = int(pause) if pause.isdigit() else PAUSE
                note(f"the gateway answers {refusal.code}; again in {pause} s")
            except (OSError, http.client.HTTPException, ValueError) as error:  # no answer, or only a part of it
                pause = PAUSE
                note(f"the gateway does not answer ({error}); again in {pause} s")
            with self.leaving:  # the next pull gets our messages after their leases expire
                time.sleep(pause)

    def pull(self):
        """Pulls messages under a lease. Empty if there were none in time."""
        with self.leaving:
            return self.call("pull", {"n": BATCH, "wait": WAIT}, patience=WAIT + 10)["messages"]

    def tell(self, verb, items):
        """Settles messages in one call. Returns the ids whose lease was not lost."""
        answers = self.call(verb, {"messages": items})["messages"] if items else []
        return {one["id"] for one in answers if one["answer"] == "done"}


class WarehouseLedger:
    """The pulled, packed and acknowledged orders."""

    def __init__(self, path):
        self.rows = sqlite3.connect(path, timeout=20, isolation_level=None)
        self.rows.execute("PRAGMA journal_mode=WAL")
        self.rows.execute("PRAGMA synchronous=NORMAL")
        self.rows.executescript(TABLES)

    def note(self, table, key, *rest):
        """Whether the row is new."""
        marks = ", ".join("?" * (len(rest) + 2))
        return self.rows.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", [key, *rest, time.time()]).rowcount == 1

    def pulls(self, message_id):
        return self.rows.execute("SELECT COUNT(*) FROM pulled WHERE message_id = ?", [message_id]).fetchone()[0]


def work(gateway, ledger, messages):
    """Packs the orders, and settles the messages in two calls."""
    acks, retries, orders = [], [], {}
    for message in messages:
        held, order = {"id": message["id"], "fence": message["fence"]}, message["body"]["order"]
        orders[message["id"]] = order
        ledger.note("pulled", message["fence"], message["id"], order)
        first = ledger.pulls(message["id"]) == 1
        if first and order % 9 == 4:  # by the number of the order, not by chance
            note(f"order {order}: nobody is at the packing table; again in 1 s")
            retries.append({**held, "delay": 1, "reason": "nobody at the packing table"})
            continue
        if not ledger.note("packed", message["id"], order):
            note(f"order {order}: packed before, so only acked (attempt {message['attempt']})")
        elif first and order % 13 == 6:
            note(f"order {order}: packed, and then our lights went out: no ack. It comes again when its lease has ended")
            continue
        else:
            note(f"order {order}: packed (attempt {message['attempt']})")
        acks.append(held)
    time.sleep(PACKING if messages else 0)
    for id in gateway.tell("ack", acks):
        ledger.note("acked", id, orders[id])
    gateway.tell("retry", retries)


def note(line):
    print(f"{line}\n", end="", flush=True)


def main():
    asked = argparse.ArgumentParser(description="The warehouse of the example shop: pulls over the gateway what is to be packed.")
    asked.add_argument("--ledger", required=True, help="its SQLite file; made if it is not there")
    options = asked.parse_args()
    for name in ("QUEUE_URL", "QUEUE_TOKEN"):
        if not os.environ.get(name):
            asked.error(f"{name} is not set. A token: manage.py delayq_gateway make warehouse --queues {QUEUE} --verbs pull,ack,retry")
    gateway = Gateway(os.environ["QUEUE_URL"], os.environ["QUEUE_TOKEN"], Leaving())
    ledger = WarehouseLedger(options.ledger)
    note(f"pulls from {gateway.url}")
    while True:
        work(gateway, ledger, gateway.pull())


if __name__ == "__main__":
    main()
