"""The fast path of schedule.lua answers and writes the same as the full script."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pytest

from django_delayq import ids
from django_delayq.job_meta import scoped
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.keys import NAMES, Keys
from django_delayq.store.scripts import loader, site
from django_delayq.store.scripts.formats import FORMAT
from tests.store.board import NOW, job_id, record

RUN = "the run of this server"
READ: dict[str, tuple[Any, ...]] = {
    "string": ("GET",),
    "list": ("LRANGE", 0, -1),
    "hash": ("HGETALL",),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    "stream": ("XRANGE", "-", "+"),
}


def call(chance: random.Random) -> tuple[Any, ...]:
    """The arguments of a call of schedule.lua, most of new jobs; in half of the calls none has a key, in a tenth every one has."""
    jobs: list[Any] = []
    keys = chance.choice((("",),) * 5 + (("",) * 20 + ("k", "with a space"),) * 4 + (tuple(f"key {n}" for n in range(60)),))
    named, scopes = chance.random() < 0.3, chance.choice(((), ("a",), ("", "a", "b")))
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 3, 9))):
        fields: dict[str, Any] = {
            "band": chance.choice(("high", "normal", "low")),
            "durable": chance.random() < 0.5,
            "max_attempts": chance.choice((10, 10, 3)),
            "expires_ms": chance.choice((0, 0, 0, NOW + 9)),
            "key": chance.choice(keys),
        }
        if scopes:
            fields["scope"] = chance.choice(scopes)
            fields["key"] = scoped(fields["scope"], fields["key"])
        number = chance.randrange(300)
        broken = (b"", b"1no:: shop.close\n", b"1no@ shop.close k\n", b"1noa shop.close\n", b"1no shop.close")
        raw = chance.choice((record(number, **fields).encode(),) * 40 + broken)
        date = chance.choice((NOW + chance.randrange(50), f"+{chance.randrange(50)}"))
        jobs += (
            ids.short(job_id(number)),
            raw,
            chance.choice(("keep", "replace", "earliest@", "latest+5000") * 5 + ("replaced@x",)),
            date,
        )
        if named:
            jobs.append(chance.choice(("", "1:order:1", "3:tenant:7")))
    limit, epoch, mode = (
        chance.choice((0, 0, 2, 4)),
        chance.choice(("", "", "g:", "g:s", "h:")),
        chance.choice(("", "", "told", "ask", "ask told")),
    )
    now, why = NOW + chance.randrange(30), chance.choice(("", "", "", "because"))
    return (now, chance.choice(("", "somebody")), why, limit, epoch, f"named {mode}" if named else mode, *jobs)


def disturbance(chance: random.Random) -> tuple[Any, ...]:
    """Something that the next call finds in the queue, with the short name of its key."""
    id = ids.short(job_id(chance.randrange(300)))
    fields = {
        "format": ("0", "1", "1", "1", "9", "x"),
        "server": ("s", RUN, RUN),
        "rolled": ("rest", "sweep"),
        "armed": ("x", "nan", *range(NOW, NOW + 70, 10)),
        "surplus": ("0", "2", "4", "-3", "-9", "nan", "x"),
        "generation": ("g", "g", "h"),
    }
    field = chance.choice(list(fields))
    return chance.choice(
        (
            *[("HSET", "meta", field, chance.choice(fields[field]))] * 8,
            *[("HDEL", "meta", field)] * 2,
            ("HSET", "meta", "format", "1"),
            ("ZADD", "finished", f"{NOW}.25", id),
            ("ZADD", "failed", NOW, id),
            ("HDEL", "jobs", id),
            ("HSET", "runs", id, "1:0:n:"),
            ("DEL", "events"),
            ("SET", chance.choice(("events", "stats", "wake")), "none of ours"),
            ("XADD", "events", "18446744073709551615-18446744073709551615", "kind", "the last id"),
            *[("DEL", chance.choice(("events", "stats", "wake")))] * 2,
        )
    )


def history(seed: int) -> Iterator[tuple[Any, ...]]:
    chance = random.Random(seed)
    for _ in range(120):
        yield ("call", *call(chance)) if chance.random() < 0.7 else disturbance(chance)


def fresh() -> str:
    return loader._read("include/schedule_fast_path.lua")


def whole(reply: Any, arguments: Sequence[Any], now: int) -> Any:
    """The reply of the rest: one to each job, where the reply only says that all were created, or are free, at `now`."""
    if not isinstance(reply, list) or len(reply) != 2 or len(arguments) == 6:
        return reply
    assert reply[1] == b"%d" % now
    stride = 5 if arguments[5].startswith("named") else 4
    status = b"free" if "ask" in arguments[5] else b"created"
    jobs = zip(arguments[6::stride], arguments[9::stride], strict=True)
    told = ((status, id.encode(), b"%d" % (now + int(date) if isinstance(date, str) else date)) for id, date in jobs)
    return [reply[0], *chain.from_iterable(told)]


def answer(link: Any, *command: Any) -> Any:
    try:
        return link.execute(*command)
    except StoreError as error:  # what else it says names the script, and the line
        return re.findall(r"EVENTSFULL|RESTORING|WRONGTYPE|BADRECORD|FORMAT|equal or smaller|exhausted", error.reply)


def contents(link: Any, keys: Keys) -> dict[str, Any]:
    kinds = [kind.decode() for kind in link.execute_many([("TYPE", keys[name]) for name in NAMES])]
    there = {name: READ[kind] for name, kind in zip(NAMES, kinds, strict=True) if kind != "none"}
    found = dict(zip(there, link.execute_many([(command, keys[name], *rest) for name, (command, *rest) in there.items()]), strict=True))
    for name, (command, *_) in there.items():
        if command == "HGETALL":
            found[name] = dict(zip(found[name][::2], found[name][1::2], strict=True))
        elif command == "XRANGE":  # ids of entries differ
            found[name] = [fields for _, fields in found[name]]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_what_is_answered_early_is_answered_and_written_the_same_as_by_the_rest(link, seed):
    script = loader.load("schedule", Keys("early", "q"))
    assert script.text.count(fresh()) == 1
    texts = {"early": script.text, "late": script.text.replace(fresh(), "")}
    roads = [(Keys(road, "q"), link.execute("SCRIPT", "LOAD", text)) for road, text in texts.items()]
    for keys, _ in roads:
        link.execute("HSET", keys["meta"], "site", site.of("early"))
    run = re.search(r"run_id:(\w+)", link.execute("INFO", "server").decode()).group(1)
    for number, move in enumerate(history(seed)):
        seen = []
        for keys, sha in roads:
            verb, *rest = (run if word == RUN else word for word in move)
            named = [keys[name] for name in script.keys]
            command = ("EVALSHA", sha, len(named), *named, *rest) if verb == "call" else (verb, keys[rest[0]], *rest[1:])
            reply = answer(link, *command)
            told = whole(reply, rest, rest[0]) if verb == "call" else reply
            seen.append(re.sub(r"\w{22}[12]\d{10,15}\b", "a new generation", repr((told, contents(link, keys)))))
        assert seen[0] == seen[1], f"move {number}: {move}"


@pytest.mark.parametrize("name", [None, "", "1:order:1"], ids=["unnamed", "named beside others", "named"])
@pytest.mark.parametrize("meta", [(), ("format", FORMAT), ("armed", NOW)], ids=["new", "upgraded", "a mover sleeps until then"])
@pytest.mark.parametrize("count", [1, 2, 200])
def test_the_usual_call_is_answered_early(link, count, meta, name):
    script, keys = loader.load("schedule", Keys("early", "q")), Keys("early", "q")
    named = [keys[name] for name in script.keys]
    link.execute("HSET", keys["meta"], "site", site.of("early"), "generation", "g", *meta)
    early = script.text.partition(fresh())[0] + fresh() + "\nreturn 'late'"
    for limit, durable, date in ((0, False, NOW), (900, True, "+5")):
        said = () if name is None else (name,)
        records = (
            (ids.short(job_id(limit + n)), record(limit + n, durable=durable).encode(), "keep", date, *said) for n in range(count)
        )
        mode = "" if name is None else "named "
        command = ("EVAL", early, len(named), *named, NOW, "", "", limit, "g:" if durable else "", mode, *chain.from_iterable(records))
        assert link.execute(*command) == [b"g:", b"%d" % NOW]
        assert link.execute(*command) == b"late"


@pytest.mark.parametrize("count", [1, 200])
def test_a_call_whose_keys_are_free_is_answered_early_where_the_server_is_confirmed(link, count):
    script, keys = loader.load("schedule", Keys("early", "q")), Keys("early", "q")
    named = [keys[name] for name in script.keys]
    run = re.search(r"run_id:(\w+)", link.execute("INFO", "server").decode()).group(1)
    link.execute("HSET", keys["meta"], "site", site.of("early"), "generation", "g", "server", run)
    early = script.text.partition(fresh())[0] + fresh() + "\nreturn 'late'"
    jobs = [(ids.short(job_id(n)), record(n, key=f"order {n}").encode(), "replace", NOW) for n in range(count)]

    def answered(mode: str) -> Any:
        return link.execute("EVAL", early, len(named), *named, NOW, "", "", 0, "", mode, *chain.from_iterable(jobs))

    created = [f"g:{run}".encode(), b"%d" % NOW]
    assert answered("ask") == created
    assert link.execute("EXISTS", keys["jobs"], keys["keys"], keys["events"]) == 0
    link.execute("HSET", keys["meta"], "rolled", "rest")
    assert answered("ask") == b"late"
    link.execute("HDEL", keys["meta"], "rolled")
    assert answered("") == created
    assert link.execute("HLEN", keys["keys"]) == count
    assert answered("ask") == b"late"


def test_a_surplus_below_nothing_hides_no_event_from_the_limit(link):
    script, keys = loader.load("schedule", Keys("early", "q")), Keys("early", "q")
    link.execute("HSET", keys["meta"], "site", site.of("early"), "generation", "g", "surplus", "-3")
    link.execute("XADD", keys["events"], "*", "at", NOW, "by", "")
    job = (ids.short(job_id(1)), record(1).encode(), "keep", NOW)
    named = [keys[name] for name in script.keys]
    assert answer(link, "EVAL", script.text, len(named), *named, "", "", "", 1, "", "", *job) == ["EVENTSFULL"]


def test_the_usual_call_goes_by_redis_clock_in_whole_milliseconds(link):
    script, keys = loader.load("schedule", Keys("early", "q")), Keys("early", "q")
    link.execute("HSET", keys["meta"], "site", site.of("early"), "generation", "g")
    named = [keys[name] for name in script.keys]
    text = script.text.replace("redis.call('TIME')", "{'1800000000', '999000'}")
    reply = link.execute(
        "EVAL", text, len(named), *named, "", "", "", 0, "", "", ids.short(job_id(1)), record(1).encode(), "keep", "+1"
    )
    assert reply == [b"g:", b"1800000000999"]
    assert link.execute("ZSCORE", keys["normal"], ids.short(job_id(1))) == b"1800000001000"
