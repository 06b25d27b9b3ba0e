"""`manage.py delayq <subcommand>`: looks into the queues and acts on jobs, for people and for scripts (`--json`)."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_delayq.console.verbs import VERBS
from django_delayq.exceptions import DelayqError
from django_delayq.logger import told
from django_delayq.management import change_commands, doctor, look_commands
from django_delayq.management.adopt_command import adopt
from django_delayq.management.embedded_command import ACTS, embedded_server
from django_delayq.management.job_filters import USAGE, add_filters, add_targets, at_least_1
from django_delayq.management.output import Visible
from django_delayq.management.periodic_command import periodic
from django_delayq.management.put_commands import add_put_commands
from django_delayq.management.resign_command import resign
from django_delayq.management.restore_command import restore
from django_delayq.management.set_aside_command import set_aside
from django_delayq.management.settings_command import settings
from django_delayq.text import did_you_mean, visible

Run = Callable[[TextIO, dict[str, Any]], int]


class Command(BaseCommand):
    """Exit codes: 0 done, 1 something was not done or is wrong, 2 wrong usage."""

    help = "Looks into the queues and acts on jobs."
    requires_system_checks = ()  # they would end `doctor` before it can say what is wrong, and `status --json` without a document

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One subparser per subcommand."""
        subcommands = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)

        self.runs: list[str] = []

        def add(name: str, run: Run, text: str) -> ArgumentParser:
            self.runs.append(name)
            found = subcommands.add_parser(name, help=text, description=text)
            found.set_defaults(run=run)
            found.add_argument("--json", action="store_true", help="one JSON document instead of text")
            return found

        add("status", look_commands.status, "how full the queues are, who works, how far behind the mirror is")
        rows = add("list", look_commands.list_jobs, "jobs, newest first")
        rows.add_argument("words", nargs="?", metavar="SEARCH", help="the same as --search")
        add_filters(rows, limit=50)
        rows.add_argument("--csv", action="store_true", help="a table for spreadsheets, with all fields, instead of text")
        add("inspect", look_commands.inspect, "everything about one job").add_argument("id", metavar="ID")
        for verb in VERBS.values():
            act = add(verb.command, partial(change_commands.change, verb), verb.help)
            add_targets(act)
            _changing(act)
            if verb.aborts:
                act.add_argument("--abort", action="store_true", help="end running jobs, instead of only asking them to stop")
            if verb.needs_date:
                act.add_argument("--delay", help="from now, as in 90s, 1h30m, 2d")
                act.add_argument("--run-at", help="a date with its time zone, as in 2030-01-31T18:00:00+01:00")
        add_put_commands(add)
        for name, run, text in (
            ("pause", change_commands.pause, "claim no more jobs of a queue; running ones go on"),
            ("resume", change_commands.resume, "let a paused queue go on"),
        ):
            act = add(name, run, text)
            act.add_argument("queue")
            act.add_argument("--reason", default="", help="why; shown in the admin")
        dates = add("periodic", periodic, "schedules: their next dates, what became of the last, on, off, run one now")
        dates.add_argument("name", nargs="?", metavar="NAME", help="only this one, with its next ten dates and its ticks")
        turn = dates.add_mutually_exclusive_group()
        turn.add_argument("--on", action="store_true", help="turn it on; what passed while it was off is not missed")
        turn.add_argument("--off", action="store_true", help="turn it off; what waits for its date is cancelled")
        turn.add_argument("--run-now", action="store_true", help="one more job of it, due now; its dates stay")
        dates.add_argument("--reason", default="", help="why; kept with the event")
        dates.add_argument("--limit", type=at_least_1, default=20, help="at most so many ticks; 20 by default")
        empty = add("purge", change_commands.purge, "cancel every scheduled job of a queue")
        empty.add_argument("queue")
        _changing(empty)
        old = add("prune", change_commands.prune, "delete rows of finished jobs whose retention has passed")
        old.add_argument("--queue", help="only this queue")
        _changing(old, reason=False)
        again = add("resign", resign, "sign records again with the newest key, after SECRET_KEY has changed")
        again.add_argument("--queue", help="only this queue")
        again.add_argument("--unsigned", action="store_true", help="also those without a signature: you trust them")
        _changing(again, reason=False)
        lost = add("restore", restore, "bring back from the database what Redis has lost")
        lost.add_argument("--queue", help="only this queue")
        _changing(lost, reason=False)
        moved = add("adopt", adopt, "take the queues in Redis, for a site that has moved or a copy that is to run")
        moved.add_argument("--empty", action="store_true", help="cancel this database's unfinished jobs, instead of running them")
        moved.add_argument("--force", action="store_true", help="also while workers of the other site report")
        _changing(moved)
        kept = add("set-aside", set_aside, "what the mirror could not take in")
        kept.add_argument("--queue", help="only this queue")
        kept.add_argument("--limit", type=at_least_1, default=50, help="at most so many; 50 by default")
        kept.add_argument("--retry", action="store_true", help="try to take it in")
        _changing(kept, reason=False)
        look = add("doctor", doctor.doctor, "find what is wrong, and say what to do about it")
        look.add_argument("--deep", action="store_true", help="also compare every unfinished job of both sides")
        look.add_argument("--fix", action="store_true", help="with --deep: put right what differs")
        _changing(look, reason=False)
        own = add("embedded", embedded_server, 'the server of REDIS "embedded": whether it runs; or end it')
        own.add_argument("act", nargs="?", choices=ACTS, default="status", help="status by default")
        add("settings", settings, "what may stand in DELAYQ, with defaults").add_argument("name", nargs="?", metavar="NAME")

    def run_from_argv(self, argv: list[str]) -> None:
        """Of argparse's answers to a missing or unknown subcommand the first names none, and the second all, in one line."""
        given = argv[2] if len(argv) > 2 else ""
        parser = self.create_parser(argv[0], argv[1])
        if not given:
            self.stderr.write(parser.format_help())
            sys.exit(USAGE)
        if not given.startswith("-") and given not in self.runs:
            self.stderr.write(f"{visible(given)} is no subcommand{did_you_mean(given, self.runs)}. `{argv[1]} --help` lists them.")
            sys.exit(USAGE)
        try:
            try:
                super().run_from_argv(argv)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails once more when it ends
            sys.exit(1)

    def handle(self, *args: Any, **options: Any) -> None:
        """Runs the subcommand; an error of ours is a sentence, not a traceback."""
        try:
            code = options["run"](Visible(self.stdout), options)
        except CommandError as error:
            raise CommandError(visible(str(error)), returncode=error.returncode) from error
        except DelayqError as error:
            raise CommandError(visible(str(error))) from error
        except DatabaseError as error:
            raise CommandError(f"The database cannot be asked: {told(error)}") from error
        if code:
            sys.exit(code)


def _changing(parser: ArgumentParser, *, reason: bool = True) -> None:
    if reason:
        parser.add_argument("--reason", default="", help="why; kept with the event")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument("--yes", action="store_true", help="do not ask")
