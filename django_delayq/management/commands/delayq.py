"""`manage.py delayq <subcommand>`: shows queues and changes jobs, for people and for scripts (`--json`)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_delayq.console.export import until_reader_leaves
from django_delayq.console.verbs import VERBS
from django_delayq.exceptions import DelayqError
from django_delayq.logger import told
from django_delayq.management import USAGE, at_least, change_commands, doctor, look_commands, pause_commands
from django_delayq.management.erase_command import erase
from django_delayq.management.job_filters import add_filters, add_targets
from django_delayq.management.output import Visible
from django_delayq.management.periodic_command import periodic
from django_delayq.management.put_commands import add_put_commands
from django_delayq.management.repair_commands import adopt, resign, restore, set_aside
from django_delayq.text import did_you_mean, documented, visible

Run = Callable[[TextIO, dict[str, Any]], int]


class Command(BaseCommand):
    """Exit codes: 0 done, 1 something was not done or is wrong, 2 wrong usage."""

    help = "Shows queues and changes jobs."
    requires_system_checks = ()  # they would end `doctor` before it can say what is wrong, and `status --json` without a document

    def add_arguments(self, parser: ArgumentParser) -> None:
        subcommands = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)

        self.runs: list[str] = []

        def add(name: str, run: Run, text: str = "") -> ArgumentParser:
            """The description is `text`, or else the docstring of `run`. The list of subcommands shows its first sentence."""
            self.runs.append(name)
            text, first = (text, text.partition(". ")[0]) if text else documented(run)
            found = subcommands.add_parser(name, help=first[:1].lower() + first[1:], description=text[:1].upper() + text[1:])
            found.set_defaults(run=run)
            found.add_argument("--json", action="store_true", help="print a JSON document")
            return found

        add("status", look_commands.status)
        rows = add("list", look_commands.list_jobs)
        rows.add_argument("words", nargs="?", metavar="SEARCH", help="the same as --search")
        add_filters(rows, limit=50)
        rows.add_argument("--csv", action="store_true", help="print all fields as CSV")
        one = add("inspect", look_commands.inspect)
        one.add_argument("id", nargs="?", metavar="ID", help="the id of the job")
        one.add_argument("--key", help="the key of the job, instead of its id; requires --queue")
        one.add_argument("--queue", help="the queue of the key")
        for verb in VERBS.values():
            text = f"{verb.help}. The exit code is 0 only if every job was changed. The JSON document has `verb`, `counts` and"
            act = add(verb.command, partial(change_commands.change, verb), f"{text} `jobs` with a result for each.")
            add_targets(act)
            _changing(act, reason=True)
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
        for act in (add("pause", pause_commands.pause), add("resume", pause_commands.resume)):
            act.add_argument("queue", nargs="?", metavar="QUEUE", help="the name of the queue")
            act.add_argument("--task", help="the name of a task, instead of a queue; it applies to all queues")
            act.add_argument("--name", help="a concurrency name, instead of a queue; it applies to all queues")
            act.add_argument("--reason", default="", help="the reason, which is shown in the admin")
            act.add_argument("--dry-run", action="store_true", help="only print what the command would do")
        until = "when the pause ends by itself: a date as for reschedule, or a duration from now, such as +2h"
        subcommands.choices["pause"].add_argument("--until", metavar="DATE", help=until)
        pace = "how many of the jobs that a task or name held return in a period, in each partition, such as 100/m"
        subcommands.choices["resume"].add_argument("--pace", help=pace)
        add("pauses", pause_commands.pauses)
        rate = add("rate", pause_commands.rate)
        rate.add_argument("name", nargs="?", metavar="NAME", help="the name of the rate; without it, all rates that are set are listed")
        rate.add_argument("rate", nargs="?", metavar="RATE", help="how many jobs can start in a period, such as 100/m (s, m, h or d)")
        rate.add_argument("--burst", type=at_least(1), help="how many jobs can start at once after a quiet time")
        rate.add_argument("--reset", action="store_true", help="use the rate that tasks declare again")
        rate.add_argument("--reason", default="", help="the reason, which is stored with the event")
        rate.add_argument("--dry-run", action="store_true", help="only print what the command would do")
        dates = add("periodic", periodic)
        dates.add_argument("name", nargs="?", metavar="NAME", help="show only this schedule, with its next ten dates and its ticks")
        turn = dates.add_mutually_exclusive_group()
        turn.add_argument("--on", action="store_true", help="turn the schedule on; dates that passed while it was off are skipped")
        turn.add_argument("--off", action="store_true", help="turn the schedule off, and cancel its waiting jobs")
        turn.add_argument("--run-now", action="store_true", help="schedule an additional job that is due now")
        dates.add_argument("--reason", default="", help="the reason, which is stored with the event")
        dates.add_argument("--limit", type=at_least(1), default=20, help="the maximum number of ticks (default: 20)")
        empty = add("purge", change_commands.purge)
        empty.add_argument("queue", metavar="QUEUE", help="the name of the queue")
        _changing(empty, reason=True)
        _changing(add("prune", change_commands.prune), queue=True)
        gone = add("erase", erase)
        gone.add_argument("ids", nargs="*", metavar="ID", help="the ids of the jobs")
        add_filters(gone, limit=None)
        gone.add_argument("--wait", type=at_least(0), default=60, help="seconds to wait for running jobs to end (default: 60)")
        _changing(gone, reason=True)
        again = add("resign", resign)
        again.add_argument("--unsigned", action="store_true", help="also sign unsigned records; only use this if you trust them")
        _changing(again, queue=True)
        _changing(add("restore", restore), queue=True)
        moved = add("adopt", adopt)
        moved.add_argument("--empty", action="store_true", help="cancel this database's unfinished jobs instead of running them")
        moved.add_argument("--force", action="store_true", help="continue even if workers of the other site are running")
        _changing(moved, reason=True)
        kept = add("set-aside", set_aside)
        kept.add_argument("--limit", type=at_least(1), default=50, help="the maximum number of events (default: 50)")
        kept.add_argument("--retry", action="store_true", help="try to write the events again")
        _changing(kept, queue=True)
        look = add("doctor", doctor.doctor)
        look.add_argument("--deep", action="store_true", help="also compare every unfinished job in the database with Redis")
        look.add_argument("--deploy", action="store_true", help="also find waiting jobs that this code does not understand")
        look.add_argument("--fix", action="store_true", help="repair the differences that --deep finds, after asking for confirmation")
        _changing(look)
        own = add("embedded", look_commands.embedded_server)
        own.add_argument("act", nargs="?", choices=("status", "stop"), default="status", help="the default is status")
        add("settings", look_commands.settings).add_argument("name", nargs="?", metavar="NAME", help="describe only this setting")

    def run_from_argv(self, argv: list[str]) -> None:
        """Prints the help without a subcommand, and suggests a name for an unknown one, which argparse does not."""
        given = argv[2] if len(argv) > 2 else ""
        parser = self.create_parser(argv[0], argv[1])
        if not given:
            self.stderr.write(parser.format_help())
            sys.exit(USAGE)
        if not given.startswith("-") and given not in self.runs:
            self.stderr.write(f"Unknown subcommand {visible(given)}{did_you_mean(given, self.runs)}. See {argv[1]} --help.")
            sys.exit(USAGE)
        with until_reader_leaves():
            super().run_from_argv(argv)

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


def _changing(parser: ArgumentParser, *, queue: bool = False, reason: bool = False) -> None:
    if queue:
        parser.add_argument("--queue", help="select only this queue")
    if reason:
        parser.add_argument("--reason", default="", help="the reason, which is stored with the event")
    parser.add_argument("--dry-run", action="store_true", help="only print what the command would do")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
