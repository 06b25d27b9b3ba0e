"""The site that this process works for. Each database has an id, and each queue in Redis has the id of its database. Scripts compare
the two before anything else, so two sites with one Redis database and one prefix never touch each other's jobs.

The id is a constant in the text of each script (see `loader.load`), so the comparison sends nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from django_delayq import clock
from django_delayq.exceptions import DelayqError
from django_delayq.store.connection.address import is_here
from django_delayq.store.connection.error_replies import StoreError, is_refusal
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import decode
from django_delayq.store.scripts.decode import position

# Tokens of a mirror's turns. They tell a database from a copy of it that has the same site id.
#
# A turn commits a new token to the checkpoint together with the rows. Then trim writes it to `mirror_token` in meta. A turn makes a new
# token only when Redis has the last one, so the checkpoint keeps two: the token that Redis had, and the one after it. A token is
# "number-random", and the number grows by one each time. So two databases that turn at the same token make two different tokens with
# one number, and trim accepts only the first. The other database finds a token that it never wrote.
#
# A lower number is an older token of this database: the database can only pass a token that Redis had. Redis was rolled back then, and
# the restore loop looks for that.
#
# A database that was refused keeps that in its checkpoint (`refused`), and stays refused until a person adopts the queue. When Redis is
# wiped or rolled back afterwards, its token says nothing about the copy. Without the note the copy would bring its old rows into Redis.
TOKEN: Final = re.compile(rb"(\d{1,15})-[0-9a-f]{16}")
REFUSED_PREFIX: Final = "refused "  # precedes the tokens


def has_written(tokens: str, token: str) -> bool:
    """Whether the database with these `tokens` wrote the token that Redis has, and was never refused. True for a queue without a token,
    which was wiped, adopted, or never trimmed.
    """
    if tokens.startswith(REFUSED_PREFIX):
        return False
    known = tokens.split()
    return not token or token in known or bool(known and _number(token) < _number(known[0]))


def tokens_after(tokens: str, token: str) -> str:
    """The tokens of the checkpoint after a turn that found `token` in Redis."""
    last = last_token(tokens)
    if token != last:
        return tokens  # the trim after the last turn did not reach Redis, or Redis was rolled back
    return f"{last} {_number(last) + 1 if last else 1}-{secrets.token_hex(8)}".strip()


def last_token(tokens: str) -> str:
    """The token of the last turn; "" for none."""
    return tokens.rpartition(" ")[2]


def _number(token: str) -> int:
    return int(token.partition("-")[0])


WORKERS: Final = "workers"  # the tag of the keys of the workers, which belong to no queue
REFUSED: Final = "SITE"  # the code of the reply of a script that finds the queue of another site, or of none
PLACES: Final = re.compile(r"[^\s,]+")
LOOKS: Final = 4  # at a database that seems to be behind: another node of a database cluster may show a commit late
LAG: Final = 0.5  # seconds between these looks
REPEAT: Final = 60.0  # seconds in which one refusal is logged once


class SiteRefused(StoreError):
    """The queue belongs to another site, or may belong to one. Nothing was written, and nothing is lost. `code`: "site_other" (Redis
    has another id), "site_moved" (Redis has no id, and is at another address than before), "site_behind" (Redis is ahead of this
    database), "site_unknown" (the database does not tell its id).
    """

    nothing_done = True


class Facts(NamedTuple):
    """The facts about one partition in the database: the `address` on which it was confirmed last ("" for never), the `last_event` that
    is recorded ("" if the database did not answer), the `tokens` of the mirror, and the `format` of the queue.
    """

    address: str
    last_event: str
    tokens: str = ""
    format: int = 1


NO_FACTS: Final = Facts("", "0-0")  # of a partition without a checkpoint


class Trimmed(NamedTuple):
    """The state of the mirror's trims in Redis: the last trimmed event (`upto`), and the `token` of that turn."""

    upto: str
    token: str

    @staticmethod
    def read(upto: bytes | None, token: bytes | None) -> Trimmed:
        """From the fields of meta. The token is "" if no mirror has written it."""
        return Trimmed(decode.text(upto), token.decode() if token is not None and TOKEN.fullmatch(token) else "")

    def __str__(self) -> str:
        return _turn(self.upto, self.token)


class Database:
    """The questions of this process to its database; see `mirror/site_row.py`. This class is for processes without a database, as in
    tests: the prefix says which site it is, so no comparison can fail.
    """

    def id(self, prefix: str) -> str:
        """The id of the site.

        Raises:
            SiteRefused: the database does not tell it.
        """
        return "t" + hashlib.sha256(prefix.encode()).hexdigest()[:15]

    def partition_facts(self, queue: str, partition: int, *, apart: bool = False) -> Facts | None:
        """The facts about that partition; None: no fact can contradict Redis. `apart`: as they are committed now, whatever the caller's
        transaction sees.

        Raises:
            SiteRefused: the database does not tell it.
        """
        return None

    def all_partition_facts(self) -> Mapping[tuple[str, int], Facts] | None:
        """The facts about all partitions that the mirror has met, or None: no fact contradicts Redis, or the database is away."""
        return None


_database = Database()
_site_ids: dict[str, str] = {}
# Queues that had the id of this site, as prefix, name, partition and address. If such a queue is empty now, it was wiped.
verified: set[tuple[str, str, int, str]] = set()
_refused: dict[tuple[str, str, int], SiteRefused] = {}  # queues that another database records, by the last check of this process
_compared: set[tuple[str, str, int, str]] = set()  # places, as in `verified`, whose mirror this process has compared with its database
_logged: dict[tuple[object, ...], float] = {}  # refusals, each with its time


def install(database: Database) -> None:
    """Sets the database to ask."""
    global _database
    _database = database
    forget()


def forget() -> None:
    """Forgets all answers of the database, because the settings may name another one."""
    _site_ids.clear()
    verified.clear()
    _refused.clear()
    _compared.clear()


def of(prefix: str) -> str:
    """The id of the site of that prefix; a process asks its database once.

    Raises:
        SiteRefused: the database does not tell it.
    """
    found = _site_ids.get(prefix)
    if found is None:
        found = _site_ids[prefix] = _database.id(prefix)
    return found


def check(prefix: str, queue: str, where: str, found: str) -> None:
    """Refuses the queue of another site. `found`: the id in Redis at that address, "" for none.

    Raises:
        SiteRefused: it is another one.
    """
    ours = of(prefix)
    if found and found != ours:
        with contextlib.suppress(SiteRefused):  # `adopt` may have changed the id; without an answer this process keeps its id
            _site_ids[prefix] = _database.id(prefix)
        code = "site_other" if queue != WORKERS else "site_workers"
        raise SiteRefused(code=code, queue=queue, where=where, ours=ours, theirs=found)


def check_address(prefix: str, queue: str, where: str, facts: Facts | None, again: Callable[[], Facts | None] | None = None) -> None:
    """Refuses a queue without an id at another address than before. `again`: as in `check_mirror`.

    Raises:
        SiteRefused: the site has moved, or this database is a copy.
    """
    here = address(where, prefix)
    if again is not None and facts is not None and facts.address not in ("", here):
        facts = again()
    if facts is not None and facts.address not in ("", here):
        raise SiteRefused(code="site_moved", queue=queue, where=where, ours=of(prefix), known=facts.address)


def check_mirror(
    keys: Keys, where: str, trimmed: Trimmed, facts: Facts | None, again: Callable[[], Facts | None] | None = None
) -> None:
    """Refuses a queue that another database records: Redis has dropped more events than this database has recorded, or has a token that
    no mirror of this database wrote. Each mirror commits before it trims, so that is no healthy pair, unless the database was read
    before Redis. `again`: reads the database anew; None: no other mirror of this database can have moved on meanwhile.

    Raises:
        SiteRefused: another database records the queue, or this one has lost commits.
    """
    place, looks = (keys.prefix, keys.queue, keys.partition), 1
    while facts is not None and not has_recorded(facts, trimmed):
        if again is None or looks == LOOKS:
            error = _refused[place] = SiteRefused(
                code="site_behind",
                queue=keys.queue,
                partition=keys.partition,
                where=where,
                ours=of(keys.prefix),
                theirs=str(trimmed),
                known=_turn(facts.last_event, last_token(facts.tokens)),
                tokens=facts.tokens,
            )
            raise error
        clock.sleep(LAG if looks > 1 else 0)
        looks += 1
        facts = again()
    _refused.pop(place, None)
    _compared.add((*place, where))


def admit(link: Link, keys: Keys) -> None:
    """Refuses to change a queue that another database records. The first call in a process asks Redis and the database, and so do all
    calls of a process that was refused. The others send nothing.

    Raises:
        SiteRefused: another database records the queue, or it belongs to another site.
    """
    place = keys.prefix, keys.queue, keys.partition, link.home
    if place in _compared and not (_refused and place[:3] in _refused):
        return
    own, upto, token = link.execute("HMGET", keys["meta"], "site", "mirrored", "mirror_token")
    link.cooldown.end()  # the server has answered, if late; the cooldown would prevent the change
    if own is None:  # nobody records it yet; the script that follows gives it an id
        raise_if_refused(keys)
        _compared.add(place)
        return
    check(keys.prefix, keys.queue, link.home, decode.text(own))
    verified.add(place)
    known = partial(partition_facts, keys.queue, keys.partition)
    facts = known()
    if facts is None or not facts.last_event:  # the database did not answer, so an earlier refusal holds
        raise_if_refused(keys)
    check_mirror(keys, link.home, Trimmed.read(upto, token), facts, partial(known, apart=True))


def raise_if_refused(keys: Keys) -> None:
    """Refuses to claim jobs of a queue if `check_mirror` found last in this process that another database records it. Running jobs are
    still settled, or they would run twice. This sends nothing to Redis.

    Raises:
        SiteRefused: another database records the queue.
    """
    if _refused and (error := _refused.get((keys.prefix, keys.queue, keys.partition))):
        raise error.with_traceback(None)


def has_recorded(facts: Facts, trimmed: Trimmed) -> bool:
    """Whether the database has everything that a mirror trimmed, and its own mirror trimmed it. True if the database did not answer."""
    if not facts.last_event:
        return True
    return position(trimmed.upto) <= position(facts.last_event) and has_written(facts.tokens, trimmed.token)


def _turn(event: str, token: str) -> str:
    return f"event {event or '0-0'}, turn {token or '0'}"


def all_partition_facts() -> Mapping[tuple[str, int], Facts] | None:
    """See `Database`."""
    return _database.all_partition_facts()


def partition_facts(queue: str, partition: int, *, apart: bool = False) -> Facts | None:
    """See `Database`."""
    return _database.partition_facts(queue, partition, apart=apart)


def is_news(error: BaseException) -> bool:
    """Whether to log an error now: a refusal once a minute in each process, another error always."""
    if not isinstance(error, DelayqError) or not is_refusal(error):
        return True
    about = error.code, error.fields.get("queue"), error.fields.get("where")
    now = clock.monotonic()
    if now < _logged.get(about, 0.0) + REPEAT:
        return False
    _logged[about] = now
    return True


def address(where: str, prefix: str) -> str:
    """The address of a server and the prefix there, in the form of the checkpoint. `where`: see `Link.home`. An address that is valid
    only on one host includes the name of that host.
    """
    here = where.startswith("unix:") or any(is_here(place.rpartition(":")[0].strip("[]")) for place in PLACES.findall(where))
    host = f" on {socket.gethostname().partition('.')[0]}" if here else ""
    return f"{where}{host}, prefix {prefix}"
