"""`manage.py delayq <subcommand>`: shows queues and changes jobs, for people and for scripts (`--json`)."""

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
from django_delayq.management import USAGE, change_commands, doctor, look_commands
from django_delayq.management.job_filters import add_filters, add_targets, at_least_1
from django_delayq.management.output import Visible
from django_delayq.management.periodic_command import periodic
from django_delayq.management.put_commands import add_put_commands
from django_delayq.management.repair_commands import adopt, resign, restore, set_aside
from django_delayq.text import did_you_mean, visible

Run = Callable[[TextIO, dict[str, Any]], int]


class Command(BaseCommand):
    """Exit codes: 0 done, 1 something was not done or is wrong, 2 wrong usage."""

    help = "Looks into the queues and acts on jobs."
    requires_system_checks = ()  # they would end `doctor` before it can say what is wrong, and `status --json` without a document

    def add_arguments(self, parser: ArgumentParser) -> None:
        subcommands = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)

        self.runs: list[str] = []

        def add(name: str, run: Run, text: str, more: str = "", *, document: str = "") -> ArgumentParser:
            self.runs.append(name)
            found = subcommands.add_parser(name, help=text, description=f"{text}. {more}".rstrip())
            found.set_defaults(run=run)
            found.add_argument("--json", action="store_true", help=f"one JSON document instead of text{document and f': {document}'}")
            return found

        add(
            "status",
            look_commands.status,
            "show queues, workers and the lag of the database",
            "Exit code 1 if Redis or the database cannot be reached. Without Redis, it shows the numbers of the database.",
            document="`redis`, `database`, `queues`, `workers`, `unpublished`, `unresolved`, `parked`; `rows` without Redis",
        )
        rows = add("list", look_commands.list_jobs, "list jobs, newest first", document="a list of rows")
        rows.add_argument("words", nargs="?", metavar="SEARCH", help="the same as --search")
        add_filters(rows, limit=50)
        rows.add_argument("--csv", action="store_true", help="a table for spreadsheets instead of text, with all fields")
        one = add(
            "inspect",
            look_commands.inspect,
            "show everything about one job",
            "It shows the row, the state in Redis, why the job waits, its attempts and events, and the last traceback.",
            document="`job`, `redis`, `waits_for`, `attempts`, `events`, `trouble`",
        )
        one.add_argument("id", nargs="?", metavar="ID", help="id of the job")
        one.add_argument("--key", help="key of the job, instead of the id; needs --queue")
        one.add_argument("--queue", help="queue of the key")
        for verb in VERBS.values():
            act = add(
                verb.command,
                partial(change_commands.change, verb),
                verb.help,
                "Exit code 0 only if it was done for every job.",
                document="`verb`, `jobs` with an answer for each, `counts`",
            )
            add_targets(act)
            _changing(act)
            if verb.aborts:
                act.add_argument("--abort", action="store_true", help="stop running jobs; without it they get a request to stop")
            if verb.needs_date:
                act.add_argument("--delay", help="time from now, as in 90s, 1h30m, 2d")
                act.add_argument(
                    "--run-at",
                    metavar="DATE",
                    help='date, as in 2030-01-31T18:00:00+01:00 or "2030-01-31 18:00", or a time of today, as in 18:00',
                )
        add_put_commands(add)
        for name, run, text in (
            ("pause", partial(change_commands.pause, paused=True), "stop claims of jobs in a queue; running jobs continue"),
            ("resume", partial(change_commands.pause, paused=False), "allow claims of jobs in a paused queue again"),
        ):
            act = add(name, run, text, document="`queue`, `paused`, `changed`")
            act.add_argument("queue", metavar="QUEUE", help="name of the queue")
            act.add_argument("--reason", default="", help="why; the admin shows it")
        dates = add(
            "periodic",
            periodic,
            "list schedules, turn one on or off, or run one now",
            "Dates are in UTC. A worker with the role relay must have seen the schedule. Exit code 1 if a schedule makes no jobs.",
            document="a list of schedules, or one with its `ticks` and `events`",
        )
        dates.add_argument("name", nargs="?", metavar="NAME", help="show this schedule with its next ten dates and its ticks")
        turn = dates.add_mutually_exclusive_group()
        turn.add_argument("--on", action="store_true", help="turn it on; dates that passed while it was off are skipped")
        turn.add_argument("--off", action="store_true", help="turn it off; its waiting jobs are cancelled")
        turn.add_argument("--run-now", action="store_true", help="schedule one more job of it, due now")
        dates.add_argument("--reason", default="", help="why; the event keeps it")
        dates.add_argument("--limit", type=at_least_1, default=20, help="maximum number of ticks (default: 20)")
        empty = add(
            "purge",
            change_commands.purge,
            "cancel every scheduled job of a queue",
            "Running jobs continue. It asks for the name of the queue.",
            document="`queue`, `cancelled`",
        )
        empty.add_argument("queue", metavar="QUEUE", help="name of the queue")
        _changing(empty)
        old = add(
            "prune",
            change_commands.prune,
            "delete rows whose retention has passed",
            "Workers with the role mirror do the same continuously.",
            document="`deleted`, or `would_delete`",
        )
        old.add_argument("--queue", help="only this queue")
        _changing(old, reason=False)
        again = add(
            "resign",
            resign,
            "sign records with the newest key after a change of SECRET_KEY",
            "Records with an unknown signature are never signed. Exit code 1 if records remain that will not run.",
            document="`newest`, `older`, `unsigned`, `wrong`, `signed`",
        )
        again.add_argument("--queue", help="only this queue")
        again.add_argument(
            "--unsigned", action="store_true", help="also sign records without a signature; use it only if you trust them"
        )
        _changing(again, reason=False)
        lost = add(
            "restore",
            restore,
            "bring back from the database what Redis has lost",
            "Workers do the same by themselves unless RESTORE is manual. You can stop and repeat it.",
            document="`queues`, `rows`, `back`, `resumed`, `missing`",
        )
        lost.add_argument("--queue", help="only this queue")
        _changing(lost, reason=False)
        moved = add(
            "adopt",
            adopt,
            "take the queues in Redis, for a site that has moved or a copy that is to run",
            "It prints the ids of both sites and the numbers of their unfinished jobs, and asks. Restart all processes afterwards.",
            document="`site`, `found`, `parts`, `rows`, `adopted`, `cancelled`",
        )
        moved.add_argument("--empty", action="store_true", help="cancel the unfinished jobs of this database instead of running them")
        moved.add_argument("--force", action="store_true", help="also if workers of the other site are running")
        _changing(moved)
        kept = add(
            "set-aside",
            set_aside,
            "list events that the database rejected, or retry them",
            "Exit code 1 if some were rejected again.",
            document="`total` and `events`; with --retry `taken_in` and `refused`",
        )
        kept.add_argument("--queue", help="only this queue")
        kept.add_argument("--limit", type=at_least_1, default=50, help="maximum number of events (default: 50)")
        kept.add_argument("--retry", action="store_true", help="try to write them again")
        _changing(kept, reason=False)
        look = add(
            "doctor",
            doctor.doctor,
            "find problems, and say what to do about them",
            "Exit code 1 if one of them is an error.",
            document="`ok`, and `findings` with `code`, `level`, `message`, `hint`",
        )
        look.add_argument("--deep", action="store_true", help="also compare every unfinished job in the database with Redis")
        look.add_argument("--fix", action="store_true", help="with --deep: repair the differences; it asks first")
        _changing(look, reason=False)
        own = add(
            "embedded",
            look_commands.embedded_server,
            'show or stop the server of REDIS "embedded"',
            "Run it in the working directory of the project. Exit code 1 if no server is running.",
            document="`directory`, `pid`, `answers`, `stopped`",
        )
        own.add_argument("act", nargs="?", choices=look_commands.EMBEDDED_ACTS, default="status", help="status by default")
        add(
            "settings",
            look_commands.settings,
            "explain the settings, with their defaults",
            document="a list of `name`, `default`, `accepts`, `meaning`, `per_queue`",
        ).add_argument("name", nargs="?", metavar="NAME", help="only this setting")

    def run_from_argv(self, argv: list[str]) -> None:
        """Prints the help without a subcommand, and suggests a name for an unknown one, which argparse does not."""
        given = argv[2] if len(argv) > 2 else ""
        parser = self.create_parser(argv[0], argv[1])
        if not given:
            self.stderr.write(parser.format_help())
            sys.exit(USAGE)
        if not given.startswith("-") and given not in self.runs:
            self.stderr.write(f"Unknown subcommand {visible(given)}{did_you_mean(given, self.runs)}. `{argv[1]} --help` lists them.")
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
        """Runs the subcommand, and prints errors of delayq as a sentence instead of a traceback."""
        try:
            code = options["run"](Visible(self.stdout), options)
        except CommandError as error:
            raise CommandError(visible(str(error)), returncode=error.returncode) from error
        except DelayqError as error:
            raise CommandError(visible(str(error))) from error
        except DatabaseError as error:
            raise CommandError(f"The database cannot be read: {told(error)}") from error
        if code:
            sys.exit(code)


def _changing(parser: ArgumentParser, *, reason: bool = True) -> None:
    if reason:
        parser.add_argument("--reason", default="", help="why; the event keeps it")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    parser.add_argument("--yes", action="store_true", help="do not ask")
