"""A queue and a database as JSON text that any version of Redis and any database can take in again, with its dates moved to now.

Redis: per key its type and its content, bytes as latin-1. Rows: per table the columns as Django's serializers write them.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Final

from django.apps.registry import Apps
from django.db import connections, models
from django.db.migrations.executor import MigrationExecutor

from django_delayq.store.connection import Link

MOMENT: Final = re.compile(r"(?<![0-9A-Za-z])\d{13}(?![0-9A-Za-z])")
NEAR_MS: Final = 30 * 86_400_000  # a number is a date of the dump if it lies that near to the day it was made
MODELS: Final = ("Checkpoint", "Job", "Attempt", "Event", "Step", "Operation")
Content = dict[str, Any]


def read_redis(link: Link) -> dict[str, Content]:
    """All keys of the server."""
    found: dict[str, Content] = {}
    for key in sorted(link.execute("KEYS", "*")):
        kind = _text(link.execute("TYPE", key))
        commands = {
            "hash": ("HGETALL", key),
            "zset": ("ZRANGE", key, 0, -1, "WITHSCORES"),
            "list": ("LRANGE", key, 0, -1),
            "string": ("GET", key),
            "stream": ("XRANGE", key, "-", "+"),
        }
        found[_text(key)] = {"type": kind, "content": _plain(link.execute(*commands[kind]))}
    return found


def write_redis(link: Link, dump: dict[str, Content], *, made_ms: int, now_ms: int) -> None:
    """Puts them in, dates moved from the day of the dump to now."""
    for key, one in dump.items():
        content = _moved(one["content"], made_ms, now_ms)
        if one["type"] == "stream":
            for id, pairs in content:
                link.execute("XADD", _bytes(key), id, *map(_bytes, pairs))
        elif one["type"] == "zset":
            members, scores = content[::2], content[1::2]
            link.execute("ZADD", _bytes(key), *(_bytes(word) for pair in zip(scores, members, strict=True) for word in pair))
        else:
            command = {"hash": "HSET", "list": "RPUSH", "string": "SET"}[one["type"]]
            link.execute(command, _bytes(key), *map(_bytes, content if isinstance(content, list) else [content]))


def read_rows(apps: Apps, using: str) -> dict[str, list[dict[str, str | None]]]:
    """All rows of the tables, by the models of the release that has written them."""
    return {name: [_row(one) for one in apps.get_model("delayq", name)._base_manager.using(using).order_by("pk")] for name in MODELS}


def write_rows(dump: dict[str, list[dict[str, str | None]]], *, using: str, made_ms: int, now_ms: int) -> None:
    """Inserts them as their release would: with the columns of its first migration, and no others."""
    apps = MigrationExecutor(connections[using]).loader.project_state([("delayq", "0001_initial")]).apps
    for name, rows in dump.items():
        model = apps.get_model("delayq", name)
        # Numbers that the database draws itself it draws anew: nothing names them, and its sequence would not know of ours.
        known = model._meta.concrete_fields
        fields = {field.attname: field for field in known if not isinstance(field, models.AutoField)}
        model._base_manager.using(using).bulk_create(
            model(**{column: _value(fields[column], text, made_ms, now_ms) for column, text in row.items() if column in fields})
            for row in rows
        )


def _row(one: models.Model) -> dict[str, str | None]:
    values = {field: field.value_from_object(one) for field in one._meta.concrete_fields}
    return {field.attname: None if value is None else field.value_to_string(one) for field, value in values.items()}


def _value(field: models.Field[Any, Any], text: str | None, made_ms: int, now_ms: int) -> Any:
    if text is None:
        return None
    if isinstance(field, models.DateTimeField):
        return datetime.fromisoformat(text) + timedelta(milliseconds=now_ms - made_ms)
    return field.to_python(_moved(text, made_ms, now_ms))


def _moved(content: Any, made_ms: int, now_ms: int) -> Any:
    if isinstance(content, list):
        return [_moved(one, made_ms, now_ms) for one in content]

    def move(found: re.Match[str]) -> str:
        ms = int(found[0])
        return str(ms - made_ms + now_ms) if abs(ms - made_ms) < NEAR_MS else found[0]

    return MOMENT.sub(move, content)


def _plain(reply: Any) -> Any:
    return [_plain(one) for one in reply] if isinstance(reply, list) else _text(reply)


def _text(raw: bytes) -> str:
    return raw.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
