"""The subcommands for auditors: report, which lists what ran, and archive, which checks the files of pruned jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from django.core.management.base import CommandError
from django.utils import translation

from django_delayq import conf
from django_delayq.console import archive as files
from django_delayq.console import export, search_parser
from django_delayq.console.moments import parse_moment
from django_delayq.console.report import COLUMNS, JobReport, document, unknown
from django_delayq.management import UsageError
from django_delayq.management.change_commands import print_result
from django_delayq.management.job_filters import chosen, named_queues, rows_of
from django_delayq.models import Job, database


def report(out: TextIO, options: dict[str, Any]) -> int:
    """Write what ran, for reconciliations and audits: a line per job.

    It has the first start, the end, the number of runs and of requeues, and who changed the job. Dates are in UTC. Totals, and what the
    database does not know, are printed to standard error. --json is the same as --format json.
    """
    as_json = options["json"] or options["format"] == "json"
    words = [f'{word}:"{options[name]}"' for name, word in _WORDS.items() if _checked(name, word, options[name])]
    queues, now = named_queues(options), database.now()
    wanted = chosen({**options, "search": " ".join(words) or None})
    found = JobReport(rows_of(wanted, Job.objects.only(*COLUMNS), "id", None))
    lines = map(export.encoded, _lines(found, as_json=as_json))
    if options["output"]:
        _write(Path(options["output"]).resolve(), lines, start=b"" if as_json else export.BOM)
    else:
        out.writelines(line.decode() for line in lines)
    ends = "".join(f" {end}: {count}." for end, count in sorted(found.ends.items()))
    sys.stderr.write(f"Jobs: {found.ends.total()}.{ends} Jobs that ran more than once: {found.repeated}.\n")
    since = parse_moment(options["since"], now) if options["since"] else None
    for line in unknown(map(conf.get().queue, queues), now, since):
        sys.stderr.write(f"Not included: {line}\n")
    return 0


_WORDS = {"key": "key", "since": "after", "until": "before"}


def _checked(name: str, word: str, text: str | None) -> bool:
    """Whether the option is given. Raises UsageError if the search does not accept it."""
    if text is None:
        return False
    with translation.override("en"):
        complaints = search_parser.parse(f'{word}:"{text}"').complaints if '"' not in text else ("it contains a quotation mark.",)
    if complaints:
        raise UsageError(f"--{name} {text}: {' '.join(complaints)}")
    return True


def _lines(found: JobReport, *, as_json: bool) -> Iterator[str]:
    if as_json:
        yield from map(export.line, found)
        return
    yield export.row(document(Job(), [], []))
    for one in found:
        yield export.row(map(export.cell, one.values()))


def _write(path: Path, lines: Iterator[bytes], start: bytes) -> None:
    if path.exists() and not path.is_file():
        raise UsageError(f"--output {path} is not a regular file.")
    try:
        with files.replacing(path) as file:
            file.write(start)
            file.writelines(export.together(lines))
    except OSError as error:
        raise CommandError(f"--output {path}: {error}") from error


def archive(out: TextIO, options: dict[str, Any]) -> int:
    """Check the files in the directory ARCHIVE: each line, and whether the jobs are those of the batch.

    The exit code is 1 if a file is damaged. The JSON document has `files`, `jobs` and `damaged`.
    """
    directory = Path(options["directory"] or conf.get().archive or "")
    if not directory.is_absolute() and not options["directory"]:
        raise UsageError("DELAYQ['ARCHIVE'] is not a directory. Name the directory with the files.")
    try:
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith(".") and ".jsonl.gz" in path.name)
    except OSError as error:
        raise CommandError(f"The archive cannot be read: {error}") from error
    jobs, damaged = 0, dict[str, str]()
    for path in paths:
        try:
            jobs += len(files.read(path))
        except ValueError as error:
            damaged[path.name] = str(error)
    text = "".join(f"{name}: {why}\n" for name, why in damaged.items())
    text += f"Files: {len(paths)}. Jobs in them: {jobs}. Damaged files: {len(damaged)}."
    print_result(out, options, {"files": len(paths), "jobs": jobs, "damaged": damaged}, text)
    return 1 if damaged else 0
