"""The registry of workers. Each worker writes a beat into one hash, and readers treat workers without a recent beat as silent. All
times are from the clock of Redis, since those of hosts differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import decode, loader, site

SILENT_MS: Final = 30_000  # a worker beats every 5 s
FORGOTTEN_MS: Final = 86_400_000
NUMBERS: Final = ("beat", "died", "started", "memory", "processes", "threads", "busy", "done", "failed")
LISTS: Final = ("queues", "sides", "targets")
LEAVE: Final = "-"  # see show.lua
ACTS: Final = ("quiet", "stop")
ASKED_MS: Final = 60_000  # a worker that has not read a request by then is cut off, and must not obey it much later


class WorkerRegistry:
    """The live workers of one prefix.

    Raises (all methods):
        StoreUnavailable, StoreError: as `Link.execute`.
    """

    def __init__(self, places: Places, *, prefix: str) -> None:
        self.link = places.shared
        self.keys = Keys.of(prefix, site.WORKERS, 0, jobs=False)
        self._key, self._asked = self.keys["workers"], self.keys["asked"]

    def beat(self, worker: str, facts: Mapping[str, Any]) -> tuple[str, str] | None:
        """Writes the beat of a worker: its facts as JSON, with the time as `beat` (ms). Returns the request to it, as `asked` does."""
        return self._request_of(worker, self._show(worker, json.dumps({**facts, "beat": self._now_ms()}), LEAVE))

    def leave(self, worker: str) -> None:
        """Removes a worker from the hash."""
        self._show(worker, "", "")

    def died(self, worker: str) -> None:
        """Marks a worker as dead, because its processes are certainly gone. It is silent from now on, and `died` has the time (ms)."""
        raw = self.link.execute("HGET", self._key, worker)
        if raw is not None and not (facts := _read(raw)).get("died"):
            self.link.cooldown.end()  # the server has answered, if late
            self._show(worker, json.dumps({**facts, "died": self._now_ms()}), LEAVE)

    def dismiss(self, worker: str) -> bool:
        """Removes a worker that has died or is silent. Returns False if there is no worker of that name, or it is alive. A worker
        that hung and continues after all appears again with its next beat.
        """
        raw = self.link.execute("HGET", self._key, worker)
        if raw is None or not _silent(_read(raw), self._now_ms()):
            return False
        self.leave(worker)
        return True

    def ask(self, worker: str, act: str, *, by: str) -> bool:
        """Asks a worker to be quiet or to stop; the last request counts. The worker reads the request with its next beat. Returns
        False if there is no such worker, or it is silent.
        """
        if act not in ACTS:
            raise ValueError(f"{act!r} is not one of {', '.join(ACTS)}")
        raw = self.link.execute("HGET", self._key, worker)
        now_ms = self._now_ms()
        if raw is None or _silent(_read(raw), now_ms):
            return False
        self._show(worker, LEAVE, f"{act} {now_ms + ASKED_MS} {by}")
        return True

    def asked(self, worker: str) -> tuple[str, str] | None:
        """The request to that worker, and who made it. None without a request, or if it is too old."""
        return self._request_of(worker, self.link.execute("HGET", self._asked, worker))

    def _request_of(self, worker: str, raw: bytes | None) -> tuple[str, str] | None:
        if raw is None:
            return None
        found = _request(raw, self._now_ms())
        if found is None:
            self.heard(worker)
        return found

    def heard(self, worker: str) -> None:
        """Notes that the worker has read its request."""
        self.link.cooldown.end()  # the server has answered, if late
        self._show(worker, LEAVE, "")

    def all(self, *, silent_ms: int = SILENT_MS, of_any_site: bool = False) -> list[dict[str, Any]]:
        """The facts of every worker, by id. `silent`: it has not beaten for `silent_ms`, because it hangs or its host is gone, or it
        has died, see `died`. `asked`: the request that it has not read yet, "" for none.

        Workers that were silent for a day are dropped.

        Raises:
            SiteRefused: the workers belong to another site, unless `of_any_site`.
        """
        flat, asked, time, own = self.link.ask(
            ("HGETALL", self._key), ("HGETALL", self._asked), ("TIME",), ("HGET", self.keys["meta"], "site")
        )
        if not of_any_site:
            site.check(self.keys.prefix, site.WORKERS, self.link.home, decode.text(own))
        now_ms, found = decode.time_ms(time), []
        requests = self._requests(asked, now_ms, drop=not of_any_site)
        for id, raw in sorted(zip(flat[::2], flat[1::2], strict=True)):
            facts = _read(raw)
            quiet_ms = now_ms - facts["beat"]
            if quiet_ms > FORGOTTEN_MS:
                if not of_any_site:
                    self._show(id, "", LEAVE)
                continue
            found.append(
                {
                    **facts,
                    "id": id.decode("utf-8", "replace"),
                    "silent": bool(facts.get("died")) or quiet_ms > silent_ms,
                    "asked": requests.get(id, ""),
                }
            )
        return found

    def _requests(self, flat: list[bytes], now_ms: int, *, drop: bool) -> dict[bytes, str]:
        found = {}
        for id, raw in zip(flat[::2], flat[1::2], strict=True):
            request = _request(raw, now_ms)
            if request is None and drop:
                self._show(id, LEAVE, "")
            elif request is not None:
                found[id] = request[0]
        return found

    def _show(self, worker: str | bytes, facts: str, request: str) -> bytes | None:
        """See show.lua."""
        found: bytes | None = loader.run(self.link, loader.load("show", self.keys), self.keys, "", "", "", worker, facts, request)
        return found

    def _now_ms(self) -> int:
        now_ms = decode.time_ms(self.link.execute("TIME"))
        self.link.cooldown.end()  # the server has answered, if late
        return now_ms


def _request(raw: bytes, now_ms: int) -> tuple[str, str] | None:
    act, _, rest = decode.text(raw).partition(" ")
    until, _, by = rest.partition(" ")
    return (act, by) if act in ACTS and now_ms <= decode.moment_ms(until) <= now_ms + ASKED_MS else None


def _silent(facts: Mapping[str, Any], now_ms: int) -> bool:
    return bool(facts.get("died")) or now_ms - facts["beat"] > SILENT_MS


def _read(raw: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(raw)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        facts = {}
    numbers = {name: _number(facts[name]) for name in NUMBERS if name in facts}
    lists = {name: _texts(facts[name]) for name in LISTS if name in facts}
    return {"beat": 0, **facts, **numbers, **lists}


def _number(given: Any) -> int:
    # Other programs may have written this value. The result is always a number that a date can hold.
    return decode.moment_ms(str(given)) if isinstance(given, (int, float)) and len(str(given)) < 40 else 0


def _texts(given: Any) -> list[str]:
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []
