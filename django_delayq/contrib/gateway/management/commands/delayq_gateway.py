"""`manage.py delayq_gateway`: creates, lists, rotates and revokes tokens, and deletes old answers."""

from __future__ import annotations

import getpass
import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_delayq.console.export import plain, until_reader_leaves
from django_delayq.console.wording import second
from django_delayq.contrib.gateway import idempotency, tokens
from django_delayq.contrib.gateway.models import ALL, PER_MINUTE, VERBS, Token
from django_delayq.exceptions import DelayqError
from django_delayq.logger import told
from django_delayq.text import visible

LISTED = tuple(field.name for field in Token._meta.fields if field.name not in ("id", "client", "digest"))


class Command(BaseCommand):
    """Exit codes: 0 success, 1 failure, 2 wrong usage."""

    help = "Manages the tokens of the gateway."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One subparser per subcommand."""
        parts = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)

        def add(name: str, text: str) -> ArgumentParser:
            found = parts.add_parser(name, help=text, description=text)
            found.set_defaults(run=getattr(self, f"_{name}"))
            found.add_argument("--json", action="store_true", help="print a JSON document")
            return found

        make = add("make", "create a token and print it; it is not shown again")
        make.add_argument("name", metavar="NAME", help="the name of the client, which is recorded as the actor token:NAME")
        make.add_argument("--queues", required=True, type=_names, help=f"comma-separated queues that the token can use, or {ALL}")
        make.add_argument(
            "--verbs", required=True, type=_names, help=f"comma-separated verbs that the token can use: {', '.join(VERBS)}; or {ALL}"
        )
        make.add_argument("--tasks", default=[ALL], type=_names, help=f"the tasks that the token can schedule and see (default: {ALL})")
        make.add_argument(
            "--secrets",
            default=[],
            type=_names,
            help="a comma-separated list of secrets for deliveries, each with its host, such as partner=https://partner.example",
        )
        make.add_argument("--targets", default=[], type=_names, help=f"targets that the token can offer to, or {ALL} (default: none)")
        make.add_argument("--scope", default="", help="the only scope, such as a tenant, whose jobs the token can schedule and see")
        make.add_argument("--expires", help="when the token expires, as a duration such as 90d (default: never)")
        make.add_argument(
            "--per-minute", type=int, default=PER_MINUTE, help=f"the limit of requests per minute (default: {PER_MINUTE})"
        )
        rotate = add("rotate", "replace the token of a client, and print the new one once")
        rotate.add_argument("name", metavar="NAME", help="the name of the client")
        rotate.add_argument("--overlap", default=tokens.OVERLAP, help=f"how long the old token stays valid (default: {tokens.OVERLAP})")
        revoke = add("revoke", "revoke the tokens of a client")
        revoke.add_argument("name", metavar="NAME", help="the name of the client")
        revoke.add_argument("--begins-with", default="", metavar="TEXT", help="revoke only the token that begins with this text")
        add("list", "list all tokens, without their secrets")
        add("prune", f"delete answers that are older than {idempotency.KEPT.total_seconds() / 3600:.0f} hours")

    def run_from_argv(self, argv: list[str]) -> None:
        """See `until_reader_leaves`."""
        with until_reader_leaves():
            super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        """Runs the subcommand. Our errors are printed without a traceback."""
        try:
            options["run"](options)
        except DelayqError as error:
            raise CommandError(visible(str(error))) from error
        except DatabaseError as error:
            raise CommandError(f"The database cannot be read: {told(error)}") from error

    def _make(self, options: dict[str, Any]) -> None:
        given = {name: options[name] for name in ("queues", "verbs", "tasks", "secrets", "targets", "per_minute", "expires")}
        self._show_once(options, *tokens.make(options["name"], created_by=_person(), only_scope=options["scope"], **given))

    def _rotate(self, options: dict[str, Any]) -> None:
        self._show_once(options, *tokens.rotate(options["name"], overlap=options["overlap"], by=_person()))

    def _revoke(self, options: dict[str, Any]) -> None:
        found = tokens.live(options["name"])
        if options["begins_with"]:
            found = found.filter(shown=options["begins_with"].rstrip("…"))
        done = tokens.revoke(found)
        if not done:
            raise CommandError(f"There is no live token named {visible(options['name'])}.")
        self._say(options, {"revoked": done}, f"Revoked tokens: {done}.")

    def _list(self, options: dict[str, Any]) -> None:
        rows = list(Token.objects.values(*LISTED, live=tokens.is_live()))
        lines = []
        for row in rows:
            lists = [f"{name} {','.join(row[name])}" for name in tokens.LISTS if row[name] or name not in ("secrets", "targets")]
            lists += [f"scope {row['only_scope']}"] if row["only_scope"] else []
            used = second(row["last_used_at"]) if row["last_used_at"] else "never"
            lines.append("  ".join([row["name"], f"{row['shown']}…", "live" if row["live"] else "ended", *lists, f"last used {used}"]))
        self._say(options, rows, "\n".join(lines) or "There are no tokens.")

    def _prune(self, options: dict[str, Any]) -> None:
        done = idempotency.prune()
        self._say(options, {"deleted": done}, f"Deleted responses: {done}.")

    def _show_once(self, options: dict[str, Any], token: Token, text: str) -> None:
        document = {"name": token.name, "token": text, "expires_at": token.expires_at}
        self.stderr.write("This is the only time that the token is shown:")
        self._say(options, document, text)

    def _say(self, options: dict[str, Any], document: Any, text: str) -> None:
        self.stdout.write(json.dumps(document, default=plain, indent=2) if options["json"] else visible(text))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _person() -> str:
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a user without a name, as in many containers
        return "cli"
