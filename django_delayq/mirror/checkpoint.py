"""The checkpoint of a queue: the last event that the mirror has folded, and its epoch. It shows whether Redis has lost its contents
or was rolled back. Mirrors, relays and restores of a queue use it as their lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django_delayq import under_test
from django_delayq.failpoints import failpoint
from django_delayq.mirror import bulk_values
from django_delayq.models import Checkpoint, database
from django_delayq.store.scripts import site
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.recovery import Epoch
from django_delayq.store.scripts.site import REFUSED_PREFIX, Facts, SiteRefused

COLUMNS: Final = tuple(field.attname for field in Checkpoint._meta.concrete_fields)
SERVERS: Final = 10  # runs of servers that are remembered
FROZEN: Final = 30  # seconds without a statement after which the database ends a turn: its process is frozen, or its host is lost


def checkpoint_of(queue: str, partition: int) -> Checkpoint:
    """The checkpoint in the database. Without one, returns a new checkpoint that is not saved."""
    found = Checkpoint.objects.filter(queue=queue, partition=partition).first()
    return found or Checkpoint(queue=queue, partition=partition)


def needs_restore(epoch: Epoch, checkpoint: Checkpoint) -> bool:
    """Whether Redis lacks what the database has seen in it, because Redis was wiped or rolled back to older data."""
    if not checkpoint.restored and not checkpoint.generation:
        return False  # the database has seen nothing yet; the mirror notes the generation that it meets first
    return bool(epoch.rolled) or epoch.generation != checkpoint.restored or epoch.older


def restored_behind(checkpoint: Checkpoint, generation: str) -> str:
    """The value of `restored` once the database has seen events of that generation."""
    if not checkpoint.restored and not checkpoint.generation:
        return generation  # the first: there was nothing to lose before
    # The restored generation does not contain the changes that another generation reports. If it returns as an old copy, it is not
    # complete.
    return generation if generation == checkpoint.restored else ""


def note_server(queue: str, partition: int, server: str, way_back: str | None = None) -> None:
    """Notes the server before pending changes are read. A change that another server reports later than this is not answered with
    "done". `way_back`: the generation that a restore brings back from now on; "" for none; None keeps the value that is noted.
    """
    checkpoint = checkpoint_of(queue, partition)
    known = (checkpoint.servers or "").split()
    noted = {"servers": " ".join([server, *(one for one in known if one != server)][:SERVERS]) if server else checkpoint.servers}
    if way_back is not None:
        noted["way_back"] = way_back
    if any(getattr(checkpoint, name) != value for name, value in noted.items()):
        failpoint("restore.note_server")
        Checkpoint.objects.filter(queue=queue, partition=partition).update(**noted)
        failpoint("restore.noted_server")


def check_site(store: QueueStore, epoch: Epoch, checkpoint: Checkpoint, again: Callable[[], Checkpoint] | None = None) -> None:
    """Refuses a queue that may belong to another site, or that another database records. `again`: reads the checkpoint anew; None:
    no other mirror can have moved it since `epoch` was read.

    Raises:
        SiteRefused: see `store/scripts/site.py`.
    """
    if under_test.derives_site():
        return
    if not epoch.site:
        site.check_address(store.keys.prefix, store.queue, store.link.home, _known(checkpoint))
    reread = None if again is None else lambda: _known(again())
    site.check_mirror(store.keys, store.link.home, epoch.trimmed, _known(checkpoint), reread)


def note_refused(error: SiteRefused) -> None:
    """Notes in the checkpoint that another database records a queue, if that is why it was refused: after a wipe nothing else shows
    it. If the checkpoint has other tokens than those that were compared, it notes nothing. The read was old, as from a replica of the
    database.
    """
    if error.code != "site_behind" or (tokens := error.fields["tokens"]).startswith(REFUSED_PREFIX):
        return
    mine = Checkpoint.objects.filter(queue=error.fields["queue"], partition=error.fields["partition"])
    mine.filter(mirror_tokens=tokens or None).update(mirror_tokens=REFUSED_PREFIX + tokens)


def known_of(queue: str, partition: int) -> Facts | None:
    """See `site.Database`, over the connection of a loop."""
    return None if under_test.derives_site() else _known(checkpoint_of(queue, partition))


def _known(checkpoint: Checkpoint) -> Facts:
    return Facts(checkpoint.address or "", checkpoint.last_event, checkpoint.mirror_tokens or "", checkpoint.format)


def note_address(store: QueueStore) -> None:
    """Notes the address of Redis, which has just been confirmed."""
    address = site.address(store.link.home, store.keys.prefix)
    Checkpoint.objects.filter(queue=store.queue, partition=store.partition).update(address=address)


def note_restored(queue: str, partition: int, way_back: str) -> None:
    """Notes that the restore is complete and that lost jobs are marked as lost. `way_back`: the value that was noted. If another
    restore has begun since, nothing changes. The noted value need not belong to the restore that is complete: of two restores that
    begin at once, the other may have noted its value last.
    """
    failpoint("restore.forget_way")
    Checkpoint.objects.filter(queue=queue, partition=partition, way_back=way_back).update(way_back="")
    failpoint("restore.forgot_way")


class CheckpointTaken(Exception):
    """Another process holds the checkpoint."""


class CheckpointRow:
    """The row of one partition. The texts of its statements are made once: each turn runs all of them, and with the ORM they took
    longer than the work of the turn itself.
    """

    def __init__(self, queue: str, partition: int) -> None:
        self._connection = database.connection()
        self._key = (queue, partition)
        self._condition = "{} = %s AND {} = %s".format(*map(self._connection.ops.quote_name, ("queue", "partition")))

    def exists(self) -> bool:
        """Whether there is one."""
        return bool(bulk_values.read(Checkpoint, ("id",), self._condition, self._key, self._connection))

    def get(self) -> Checkpoint:
        """As it is now."""
        [row] = bulk_values.read(Checkpoint, COLUMNS, self._condition, self._key, self._connection)
        return Checkpoint.from_db(self._connection.alias, COLUMNS, row)

    def take(self) -> None:
        """Locks the row as `lock` does, but does not wait. A database that cannot skip locked rows waits.

        Raises:
            CheckpointTaken: another process has the lock.
        """
        if self._connection.features.has_select_for_update_skip_locked:
            free = f"{self._condition} {self._connection.ops.for_update_sql(skip_locked=True)}"
            if not bulk_values.read(Checkpoint, ("id",), free, self._key, self._connection):
                raise CheckpointTaken
        self.lock()

    def lock(self) -> None:
        """Takes the lock by an update: that works on all databases."""
        quote = self._connection.ops.quote_name
        table, turns = quote(Checkpoint._meta.db_table), quote("turns")
        with self._connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {turns} = {turns} + 1 WHERE {self._condition}", self._key)

    def update(self, **fields: Any) -> None:
        """Changes it."""
        bulk_values.update(Checkpoint, fields, self._condition, self._key, self._connection)


@contextmanager
def locked_checkpoint(queue: str, partition: int, *, waits: bool = True) -> Iterator[tuple[CheckpointRow, Checkpoint]]:
    """Opens a transaction that holds the checkpoint of a queue. What the caller reads from Redis and writes within it is no older
    than what the turn before has written. If `waits` is False and the checkpoint is locked, raises CheckpointTaken.
    """
    mine = CheckpointRow(queue, partition)
    if not mine.exists():
        new = Checkpoint(queue=queue, partition=partition)
        Checkpoint.objects.bulk_create([new], ignore_conflicts=True)
    with database.atomic():
        end_if_frozen(database.connection())
        if waits:
            mine.lock()
        else:
            mine.take()
        yield mine, mine.get()


def end_if_frozen(connection: Any) -> None:
    """Lets the database end this transaction if it stays idle, where the database has a setting for that: other processes need the
    rows that it locks.
    """
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{FROZEN}s'")
        elif connection.vendor == "mysql" and connection.mysql_is_mariadb:
            own = "@@idle_transaction_timeout"
            cursor.execute(f"SET SESSION idle_transaction_timeout = IF({own} BETWEEN 1 AND {FROZEN}, {own}, {FROZEN})")
