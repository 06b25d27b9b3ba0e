"""Hands jobs to `ARCHIVE` before prune deletes them. If `ARCHIVE` is a directory, they are written there as compressed JSON lines."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, Final
from uuid import UUID

from django.utils.module_loading import import_string

from django_delayq.console import export
from django_delayq.exceptions import ConfigError
from django_delayq.mirror.prune import ArchiveFailed
from django_delayq.models import Job

Keep = Callable[[str, list[dict[str, Any]]], object]
NAME: Final = re.compile(r"\d{4}-\d\d-\d\d-([0-9a-f]{32})\.jsonl\.gz")
UNFINISHED: Final = re.compile(rf"\.{NAME.pattern}\.\w{{8}}")  # the name that `replacing` gives a file at first
LEFT_AFTER: Final = 3_600.0  # seconds; a batch is written within a few
HINT: Final = "Use the dotted path to a function that takes a batch id and a list of documents, or an absolute path of a directory."


@lru_cache(maxsize=8)
def load(path: str) -> Keep | None:
    """The function that keeps a batch; None for "".

    Raises:
        ConfigError: the path cannot be imported, or is not a function.
    """
    if not path:
        return None
    if os.path.isabs(path):
        return partial(write, path)
    try:
        found = import_string(path)
    except ImportError as error:
        raise ConfigError(f'DELAYQ["ARCHIVE"]: {path!r} cannot be imported: {error}.', hint=HINT) from error
    if not callable(found):
        raise ConfigError(f'DELAYQ["ARCHIVE"]: {path!r} is not a function.', hint=HINT)
    made: Keep = found
    return made


def taker(path: str | None) -> Callable[[Sequence[Job]], None] | None:
    """`hand_over` with this value of `ARCHIVE`; None without one."""
    return partial(hand_over, path) if path else None


def hand_over(path: str, jobs: Sequence[Job]) -> None:
    """Passes these jobs to the archive, each with its attempts and events, and with masked values as in an export.

    Raises:
        ArchiveFailed: the archive has raised an error, so it may not have the jobs.
        ConfigError: see `load`.
    """
    keep, batch = load(path), batch_id(job.pk for job in jobs)
    # The archive gets what a JSON file would contain: dates and ids are text.
    histories = export.histories({job.pk: job.task for job in jobs})
    documents = [json.loads(export.line({"job": export.job_document(job), **histories[job.pk]})) for job in jobs]
    try:
        if keep is not None:
            keep(batch, documents)
    except Exception as error:  # the code of the project may raise anything
        raise ArchiveFailed(
            f"ARCHIVE ({path}) did not take the batch {batch} (jobs: {len(jobs)}): {type(error).__name__}: {error}. These jobs stay in "
            "the database, and the batch is handed over again. Correct the cause. To try at once, run manage.py delayq prune."
        ) from error


def batch_id(jobs: Iterable[UUID]) -> str:
    """The id of a batch of jobs, derived from their ids in any order: a batch that is handed over again has the same id."""
    return hashlib.sha256(b"".join(sorted(job.bytes for job in jobs))).hexdigest()[:32]


def write(directory: str, batch: str, documents: Sequence[dict[str, Any]]) -> None:
    """Writes a batch to a file that is named by its latest end and its id, so that a repeat replaces the same file."""
    day = max(document["job"]["finished_at"] for document in documents)[:10]
    path = Path(directory, f"{day}-{batch}.jsonl.gz")
    with replacing(path) as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.writelines(export.encoded(export.line(document)) for document in documents)
    with suppress(OSError):  # another process may remove them too, and the batch is written
        _remove_unfinished(path)


def _remove_unfinished(written: Path) -> None:
    """Removes files that killed processes have left. Both dates are by the clock of the file system."""
    before = written.stat().st_mtime - LEFT_AFTER
    for path in written.parent.iterdir():
        if UNFINISHED.fullmatch(path.name) and path.stat().st_mtime < before:
            path.unlink()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is complete and on disk. It replaces an existing file. After an error, nothing is replaced."""
    descriptor, unnamed = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(unnamed, path)
    except BaseException:
        os.unlink(unnamed)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # otherwise a crash of the host could undo the renaming
    finally:
        os.close(directory)


def unusable(directory: str) -> str:
    """Why archives cannot be written to a directory; "" if they can."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return ""
    except OSError as error:
        return str(error)


def read(path: Path) -> list[UUID]:
    """The jobs of a file.

    Raises:
        ValueError: the file is damaged, or does not contain exactly the jobs of the batch in its name.
    """
    jobs: list[UUID] = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            jobs.extend(UUID(json.loads(line)["job"]["uuid"]) for line in lines)
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"line {len(jobs) + 1} cannot be read: {type(error).__name__}: {error}") from error
    named = NAME.fullmatch(path.name)
    if named is None or batch_id(jobs) != named[1]:
        raise ValueError(f"the jobs in it ({len(jobs)}) are not those of the batch in its name")
    return jobs
