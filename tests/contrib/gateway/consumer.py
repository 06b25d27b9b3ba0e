"""A consumer that uses only HTTP: `python -m tests.contrib.gateway.consumer NAME SOCKET TOKEN FOLDER [BATCH WHERE]`. It pulls until
the queue is empty, and writes down the messages that it holds. In batch number BATCH it kills itself at the point WHERE: `taken`,
`half` (half of the batch is settled) or `settled`. It sends a request without an answer again, unchanged.
"""

from __future__ import annotations

import http.client
import os
import signal
import sys
import time
from typing import Any

from tests.app import record
from tests.contrib.gateway.served import Answer, Client

LEASE = 1.0  # seconds


def main(name: str, address: str, token: str, folder: str, batch_number: int = 0, where: str = "") -> None:
    client, ledger = Client(address, token), record.own(folder, f"consumer-{name}")
    number = 0

    def dies(place: str) -> None:
        if (number, place) == (batch_number, where):
            os.kill(os.getpid(), signal.SIGKILL)

    def answered(path: str, body: dict[str, Any] | None) -> tuple[Answer, int]:
        tries = 0
        while True:
            tries += 1
            try:
                answer = client.get(path) if body is None else client.post(path, body)
            except (OSError, http.client.HTTPException):  # the server was killed
                time.sleep(0.05)
                continue
            if answer.status not in (502, 503):
                return answer, tries

    while True:
        sent = time.monotonic_ns()
        answer, _ = answered("queues/mail/pull", {"n": 5, "wait": "500ms", "lease": LEASE})
        messages = answer.body["messages"]
        number += 1
        for message in messages:
            ledger.write(what="took", id=message["id"], fence=_fence(message), attempt=message["attempt"], sent=sent)
        if not messages:
            figures, _ = answered("queues/mail", None)
            if not figures.body["scheduled"] + figures.body["running"]:
                return
            continue
        dies("taken")
        for place, message in enumerate(messages):
            if place == 2:
                dies("half")
            ledger.write(what="ends", id=message["id"], fence=_fence(message))  # before: from here on others may have it
            path = f"queues/mail/messages/{message['id']}/ack"
            answer, tries = answered(path, {"fence": message["fence"]})
            assert answer.status in (200, 409), answer.body
            ledger.write(what="told", id=message["id"], done=answer.status == 200, tries=tries)
        dies("settled")


def _fence(message: dict[str, Any]) -> str:
    """Returns an identifier of this claim of this message."""
    return f"{message['fence']}/{message['id']}"


if __name__ == "__main__":
    main(*sys.argv[1:5], *(int(word) if word.isdigit() else word for word in sys.argv[5:]))
