"""Creates, finds, rotates and revokes tokens, authenticates requests, and limits their rate. Only the hash of a token is stored.

Django's default cache counts the requests of each token per minute. With a cache that is local to a process, each process has its own
limit. If the cache fails, the gateway rejects requests.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.cache import cache
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import HttpRequest

from django_delayq import clock, conf, durations
from django_delayq.contrib.gateway.models import ALL, UNSCOPED, VERBS, Token, secret_of
from django_delayq.contrib.gateway.responses import GatewayProblem
from django_delayq.exceptions import ConfigError, TargetRefused
from django_delayq.logger import Logger
from django_delayq.models import database
from django_delayq.producer import scopes

logger: Final = Logger("django_delayq.gateway")
PREFIX: Final = "dqg_"  # secret scanners can recognise it
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
USED_EVERY: Final = timedelta(minutes=1)
OVERLAP: Final = "1d"
MOST_PER_MINUTE: Final = 1_000_000
WINDOW_MS: Final = 60_000
LISTS: Final = ("queues", "verbs", "tasks", "secrets", "targets")
LONGEST: Final = 200  # characters; no token is as long


def is_live() -> ExpressionWrapper[Q]:
    """An expression: whether the token is valid now, by the clock of the database."""
    dated = Q(expires_at=None) | Q(expires_at__gt=database.ago())
    return ExpressionWrapper(dated & Q(revoked_at=None), BooleanField())


def live(name: str | None = None) -> QuerySet[Token]:
    """The valid tokens, of one name or of all, newest first."""
    found = Token.objects.filter(is_live())
    return (found if name is None else found.filter(name=name)).order_by("-id")


def make(name: str, *, expires: durations.Delay | None = None, **given: Any) -> tuple[Token, str]:
    """Creates a token. Returns the row, and the token itself, which is not stored. `expires`: time from now; None: never. `given`: its
    other fields. Each of its `secrets` has the origin that may receive it, such as `partner=https://hooks.partner.example`.

    Raises:
        ConfigError: a value is not valid, or a live token has this name.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a valid token name. Use 1 to 100 letters, digits, dots, dashes and underscores.")
    token, config = Token(name=name, **{"tasks": [ALL], "secrets": [], "targets": [], **given}), conf.get()
    for field, known in (("queues", config.queues), ("verbs", VERBS), ("targets", config.targets)):
        unknown = next((one for one in getattr(token, field) if one != ALL and one not in known), None)
        if unknown is not None:
            listing = ", ".join([*known, f"and {ALL} for all"])
            raise ConfigError(f"The {field} of the token {name} contain the unknown value {unknown!r}. Available values: {listing}.")
    for field in ("queues", "verbs", "tasks"):
        if not getattr(token, field):
            raise ConfigError(f"The token {name} has no {field}. For all, use {ALL}.")
    token.only_scope = scopes.valid(token.only_scope, f"scope of the token {name}")
    if token.only_scope and (refused := sorted(UNSCOPED.intersection(token.verbs))):
        raise ConfigError(f"The token {name} has a scope, so it cannot have verbs that concern whole queues: {', '.join(refused)}.")
    if not 1 <= (limit := token.per_minute) <= MOST_PER_MINUTE:
        raise ConfigError(f"The limit of the token {name} must be 1 to {MOST_PER_MINUTE:,} requests per minute, not {limit}.")
    if live(name).exists():
        raise ConfigError(f"A live token named {name} already exists. Rotate it, revoke it, or use another name.")
    token.secrets = [_secret(name, one) for one in given.get("secrets", ())]
    token.expires_at = None if expires is None else _from_now(expires, f"expires of the token {name}")
    return _made(token)


def rotate(name: str, *, overlap: durations.Delay = OVERLAP, by: str = "") -> tuple[Token, str]:
    """Creates a token with the same permissions. The old token stays valid for the time `overlap`, so that clients can switch.

    Raises:
        ConfigError: no live token has this name, or two have it, because it was rotated recently.
    """
    ends = _from_now(overlap, "overlap")
    with database.atomic():
        found = list(live(name).select_for_update())
        if not found:
            raise ConfigError(f"There is no live token named {name}. Create one.")
        if len(found) > 1:
            raise ConfigError(f"There are two live tokens named {name}. Wait until the old one expires, or revoke it.")
        old = found[0]
        kept = old.expires_at
        old.expires_at = ends if kept is None else min(kept, ends)
        old.save(using=database.alias(), update_fields=["expires_at"])
        same = {name: getattr(old, name) for name in ("name", "client", *LISTS, "only_scope", "per_minute")}
        return _made(Token(**same, created_by=by, expires_at=kept))


def revoke(tokens: QuerySet[Token]) -> int:
    """Revokes the tokens. Returns how many were not revoked before."""
    return tokens.filter(revoked_at=None).update(revoked_at=database.ago())


def find(sent: str) -> Token | None:
    """The live token with this text. Updates `last_used_at`, at most once a minute. The database compares hashes, so the time that this
    takes reveals nothing about tokens.
    """
    if len(sent) > LONGEST:
        return None
    unused = Q(last_used_at=None) | Q(last_used_at__lt=database.ago(USED_EVERY.total_seconds()))
    token = live().filter(digest=digest(sent)).annotate(unused=ExpressionWrapper(unused, BooleanField())).first()
    if token is not None and token.unused:
        Token.objects.filter(unused, pk=token.pk).update(last_used_at=database.ago())
    return token


def authenticate(request: HttpRequest) -> Token:
    """The token of a request.

    Raises:
        GatewayProblem: token_missing, token_invalid.
    """
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not sent.strip():
        raise GatewayProblem("token_missing", headers={"WWW-Authenticate": "Bearer"})
    found = find(sent.strip())
    if found is None:
        raise GatewayProblem("token_invalid", headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
    return found


def count_request(token: Token) -> None:
    """Counts a request.

    Raises:
        GatewayProblem: rate: too many requests in this minute; limit_away: the cache does not count.
    """
    minute, passed = divmod(clock.wall_ms(), WINDOW_MS)
    if _incremented(f"delayq-gateway:{token.name}:{minute}") > token.per_minute:
        wait = str(-((passed - WINDOW_MS) // 1000))
        raise GatewayProblem("rate", limit=token.per_minute, headers={"Retry-After": wait})


def _incremented(key: str) -> int:
    try:
        cache.add(key, 0, timeout=2 * WINDOW_MS // 1000)
        found = cache.incr(key)
    except Exception as error:  # each cache backend has its own errors
        logger.error("The gateway cannot count requests, so it rejects them: %s", error)
        raise GatewayProblem("limit_away", headers={"Retry-After": "5"}) from error
    if not isinstance(found, int):  # a cache that hides its errors
        raise GatewayProblem("limit_away", headers={"Retry-After": "5"})
    return found


def _from_now(delay: durations.Delay, where: str) -> datetime:
    try:
        return database.now() + timedelta(seconds=durations.seconds(delay))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}.") from None


def digest(text: str) -> str:
    """The hash of a token, which is stored."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _secret(token: str, given: str) -> str:
    from django_delayq.targets import addresses  # a project without deliveries does not load it

    name, _, url = given.partition("=")
    http = conf.get().http
    if not name or not url:
        raise ConfigError(f"secrets of the token {token}: {given!r} has no host. Example: partner=https://hooks.partner.example.")
    if http is not None and http.secrets and name not in http.secrets:
        raise ConfigError(f"The secrets of the token {token} contain {name!r}, which is not in DELAYQ['HTTP']['SECRETS'].")
    try:
        return secret_of(name, addresses.read_url(url).site)
    except TargetRefused as error:
        raise ConfigError(f"secrets of the token {token}: {error}") from None


def _made(token: Token) -> tuple[Token, str]:
    text = PREFIX + secrets.token_urlsafe(32)
    token.digest, token.shown = digest(text), text[: len(PREFIX) + 4]
    token.created_at = database.now()
    token.save(using=database.alias())
    return token, text
