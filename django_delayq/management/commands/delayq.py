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
from django_delayq.management import USAGE, at_least, change_commands, doctor, look_commands
from django_delayq.management.job_filters import add_filters, add_targets
from django_delayq.management.output import Visible
from django_delayq.management.periodic_command import periodic
from django_delayq.management.put_commands import add_put_commands
from django_delayq.management.repair_commands import adopt, resign, restore, set_aside
from django_delayq.text import did_you_mean, visible

Run = Callable[[TextIO, dict[str, Any]], int]


class Command(BaseCommand):
    """Exit codes: 0 done, 1 something was not done or is wrong, 2 wrong usage."""

    help = "Shows queues and changes jobs."
    requires_system_checks = ()  # they would end `doctor` before it can say what is wrong, and `status --json` without a document

    def add_arguments(self, parser: ArgumentParser) -> None:
        subcommands = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)

        self.runs: list[str] = []

        def add(name: str, run: Run, text: str, more: str = "", *, document: str = "") -> ArgumentParser:
            self.runs.append(name)
            found = subcommands.add_parser(name, help=text, description=f"{text}. {more}".rstrip())
            found.set_defaults(run=run)
            found.add_argument("--json", action="store_true", help=f"print a JSON document{document and f' with {document}'}")
            return found

        add(
            "status",
            look_commands.status,
            "show the queues, the workers and the mirror's lag",
            "If Redis cannot be reached, the numbers come from the database. The exit code is 1 if Redis or the database "
            "cannot be reached.",
            document="`redis`, `database`, `queues`, `workers`, `unpublished`, `unresolved` and `parked`, or `rows` without Redis",
        )
        rows = add("list", look_commands.list_jobs, "list jobs, with the newest first", document="a list of rows")
        rows.add_argument("words", nargs="?", metavar="SEARCH", help="the same as --search")
        add_filters(rows, limit=50)
        rows.add_argument("--csv", action="store_true", help="print all fields as CSV")
        one = add(
            "inspect",
            look_commands.inspect,
            "show all details of a job",
            "This includes its row, its state in Redis, the reason why it is waiting, its attempts and events, and the last traceback.",
            document="`job`, `redis`, `waits_for`, `attempts`, `events` and `trouble`",
        )
        one.add_argument("id", nargs="?", metavar="ID", help="the id of the job")
        one.add_argument("--key", help="the key of the job, instead of its id; requires --queue")
        one.add_argument("--queue", help="the queue of the key")
        for verb in VERBS.values():
            act = add(
                verb.command,
                partial(change_commands.change, verb),
                verb.help,
                "The exit code is 0 only if every job was changed.",
                document="`verb`, `jobs` with a result for each and `counts`",
            )
            add_targets(act)
            _changing(act)
            if verb.flag:
                act.add_argument(f"--{verb.flag[0]}", action="store_true", help=verb.flag[1])
            if verb.needs_date:
                act.add_argument("--delay", help="a duration from now, such as 90s, 1h30m or 2d")
                act.add_argument(
                    "--run-at",
                    metavar="DATE",
                    help='a date, such as 2030-01-31T18:00:00+01:00 or "2030-01-31 18:00", or a time today, such as 18:00',
                )
        add_put_commands(add)
        for name, run, text in (
            (
                "pause",
                partial(change_commands.pause, paused=True),
                "pause a queue, so that workers claim no more of its jobs; running jobs continue",
            ),
            ("resume", partial(change_commands.pause, paused=False), "resume a paused queue"),
        ):
            act = add(name, run, text, document="`queue`, `paused` and `changed`")
            act.add_argument("queue", metavar="QUEUE", help="the name of the queue")
            act.add_argument("--reason", default="", help="the reason, which is shown in the admin")
        dates = add(
            "periodic",
            periodic,
            "list schedules, turn a schedule on or off, or run it now",
            "Dates are in UTC. Schedules are listed once a worker with the role relay has read them. The exit code is 1 if a "
            "schedule cannot create jobs.",
            document="a list of schedules, or with one schedule and its `ticks` and `events`",
        )
        dates.add_argument("name", nargs="?", metavar="NAME", help="show only this schedule, with its next ten dates and its ticks")
        turn = dates.add_mutually_exclusive_group()
        turn.add_argument("--on", action="store_true", help="turn the schedule on; dates that passed while it was off are skipped")
        turn.add_argument("--off", action="store_true", help="turn the schedule off, and cancel its waiting jobs")
        turn.add_argument("--run-now", action="store_true", help="schedule an additional job that is due now")
        dates.add_argument("--reason", default="", help="the reason, which is stored with the event")
        dates.add_argument("--limit", type=at_least(1), default=20, help="the maximum number of ticks (default: 20)")
        empty = add(
            "purge",
            change_commands.purge,
            "cancel all scheduled jobs in a queue",
            "Running jobs continue. To confirm, you must type the name of the queue.",
            document="`queue` and `cancelled`",
        )
        empty.add_argument("queue", metavar="QUEUE", help="the name of the queue")
        _changing(empty)
        old = add(
            "prune",
            change_commands.prune,
            "delete rows that are older than RETENTION allows",
            "Workers with the role mirror do this automatically.",
            document="`deleted` or `would_delete`",
        )
        old.add_argument("--queue", help="select only this queue")
        _changing(old, reason=False)
        again = add(
            "resign",
            resign,
            "sign records with the new key after you change SECRET_KEY",
            "Records with an unknown signature are not signed. The exit code is 1 if there are records that workers will not run.",
            document="`newest`, `older`, `unsigned`, `wrong` and `signed`",
        )
        again.add_argument("--queue", help="select only this queue")
        again.add_argument(
            "--unsigned", action="store_true", help="also sign records that have no signature; only use this if you trust them"
        )
        _changing(again, reason=False)
        lost = add(
            "restore",
            restore,
            "restore the jobs that Redis has lost from the database",
            "Workers do this automatically, unless RESTORE is manual. You can interrupt the command and run it again.",
            document="`queues`, `rows`, `back`, `resumed` and `missing`",
        )
        lost.add_argument("--queue", help="select only this queue")
        _changing(lost, reason=False)
        moved = add(
            "adopt",
            adopt,
            "take over the queues in Redis after a site has moved, or to run jobs from a copy of the database",
            "The command prints the ids of both sites and the number of their unfinished jobs, and asks for confirmation. "
            "Restart all processes afterwards.",
            document="`site`, `found`, `parts`, `rows`, `adopted` and `cancelled`",
        )
        moved.add_argument("--empty", action="store_true", help="cancel this database's unfinished jobs instead of running them")
        moved.add_argument("--force", action="store_true", help="continue even if workers of the other site are running")
        _changing(moved)
        kept = add(
            "set-aside",
            set_aside,
            "list events that the database rejected, or write them again",
            "The exit code is 1 if an event was rejected again.",
            document="`total` and `events`, or with `taken_in` and `refused` if you use --retry",
        )
        kept.add_argument("--queue", help="select only this queue")
        kept.add_argument("--limit", type=at_least(1), default=50, help="the maximum number of events (default: 50)")
        kept.add_argument("--retry", action="store_true", help="try to write the events again")
        _changing(kept, reason=False)
        look = add(
            "doctor",
            doctor.doctor,
            "find problems and show how to fix them",
            "The exit code is 1 if it finds an error.",
            document="`ok` and `findings`, each with `code`, `level`, `message` and `hint`",
        )
        look.add_argument("--deep", action="store_true", help="also compare every unfinished job in the database with Redis")
        look.add_argument("--fix", action="store_true", help="repair the differences that --deep finds, after asking for confirmation")
        _changing(look, reason=False)
        own = add(
            "embedded",
            look_commands.embedded_server,
            "show or stop the embedded server",
            "Run this command in your project's working directory. The exit code is 1 if the server is not running.",
            document="`directory`, `pid`, `answers` and `stopped`",
        )
        own.add_argument("act", nargs="?", choices=look_commands.EMBEDDED_ACTS, default="status", help="the default is status")
        add(
            "settings",
            look_commands.settings,
            "describe the settings and their defaults",
            document="the `name`, `default`, `accepts`, `meaning` and `per_queue` of each setting",
        ).add_argument("name", nargs="?", metavar="NAME", help="describe only this setting")

    def run_from_argv(self, argv: list[str]) -> None:
        """Prints the help without a subcommand, and suggests a name for an unknown one, which argparse does not."""
        given = argv[2] if len(argv) > 2 else ""
        parser = self.create_parser(argv[0], argv[1])
        if not given:
            self.stderr.write(parser.format_help())
            sys.exit(USAGE)
        if not given.startswith("-") and given not in self.runs:
            self.stderr.write(
                f"Unknown subcommand {visible(given)}{did_you_mean(given, self.runs)}. To list all subcommands, run `{argv[1]} --help`."
            )
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
        parser.add_argument("--reason", default="", help="the reason, which is stored with the event")
    parser.add_argument("--dry-run", action="store_true", help="only print what the command would do")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
