"""Tokens of a mirror's turns. They tell a database from a copy of it that has the same site id.

A turn commits a new token to the checkpoint together with the rows. Then trim writes it to `mirror_token` in meta. A turn makes a new
token only when Redis has the last one, so the checkpoint keeps two: the token that Redis had, and the one after it. A token is
"number-random", and the number grows by one each time. So two databases that turn at the same token make two different tokens with one
number, and trim accepts only the first. The other database finds a token that it never wrote.

A lower number is an older token of this database: the database can only pass a token that Redis had. Redis was rolled back then, which
the restore loop looks for.

A database that was refused keeps that in its checkpoint (`refused`), and stays refused until a person adopts the queue. When Redis is
wiped or rolled back afterwards, its token says nothing about the copy. Without the note the copy would bring its old rows into Redis.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

TOKEN: Final = re.compile(rb"(\d{1,15})-[0-9a-f]{16}")
REFUSED: Final = "refused "  # stands before the tokens


def token_in(raw: bytes | None) -> str:
    """The token in that field of meta; "" for none, and for what no mirror writes."""
    return raw.decode() if raw is not None and TOKEN.fullmatch(raw) else ""


def has_written(tokens: str, token: str) -> bool:
    """Whether the database with these `tokens` wrote the token that Redis has, and was never refused. True for a queue without a token,
    which was wiped, adopted, or never trimmed.
    """
    if tokens.startswith(REFUSED):
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
