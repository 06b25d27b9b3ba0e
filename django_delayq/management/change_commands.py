"""The subcommands that change jobs or queues: cancel, reschedule, run-now, requeue, purge and prune. They call the
functions of the producer, and report the result of each.
"""

from __future__ import annotations

import getpass
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from django.core.management.base import CommandError
from django.template.defaultfilters import pluralize

from django_delayq import conf, ids
from django_delayq.console import archive, overview
from django_delayq.console.verbs import NamedJob, Verb, apply, is_unknown
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.management import UsageError
from django_delayq.management.job_filters import known_queue, moment, named_key, named_queues, seconds, targets
from django_delayq.management.output import print_json, progress
from django_delayq.mirror.prune import OldOperationsLoop, OldTicksLoop, PruneLoop, old_jobs, old_operations, old_set_aside, old_ticks
from django_delayq.producer import queues
from django_delayq.producer.stores import stores
from django_delayq.states import Change
from django_delayq.text import one_line

WORDS = {
    Change.DONE: "done",
    Change.RUNNING: "running",
    Change.FINISHED: "already finished",
    Change.UNKNOWN: "unknown",
    Change.CONFLICT: "in conflict (another job has its key, or its state does not allow this)",
}
ASKED = " A cancellation was requested. The task can stop by itself and is not retried."  # for a running job
ABORTED = " An abort was requested. The task ends within seconds and is not retried."
ASK_FROM = 20  # jobs that a filter matches; fewer need no confirmation


def actor() -> str:
    """The user who runs the command, for the events."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return "cli"


def change(verb: Verb, out: TextIO, options: dict[str, Any]) -> int:
    """Applies a verb to the jobs that ids, a key or a filter choose."""
    how = {"actor": actor(), "reason": options["reason"]}
    if verb.flag:
        how[verb.flag[0]] = options[verb.flag[0]]
    if verb.needs_date:
        if (options["delay"] is None) == (options["run_at"] is None):
            raise UsageError("Specify either --delay or --run-at.")
        how["delay"] = seconds(options["delay"], "--delay")
        if options["run_at"] is not None:
            how["run_at"] = moment(options["run_at"], "--run-at")
    if named := named_key(options):
        key, queue = named
        if options["dry_run"]:
            text = f"Would {verb.command} the job with the key {key!r}."
            return print_result(out, options, {"would": verb.command, "jobs": 1}, text)
        return _report(out, options, verb, [{"key": key, "change": verb.act(key=key, queue=queue, scope=options["scope"], **how)}])
    chosen = targets(options, states=verb.swept)
    if options["dry_run"]:
        shown = ", ".join(ids.short(target.id) for target in chosen[:5])
        named_some = f"{': ' + shown if shown else ''}{', …' if len(chosen) > 5 else ''}"
        text = f"Would {verb.command} {len(chosen)} job{pluralize(len(chosen))}{named_some}."
        return print_result(out, options, {"would": verb.command, "jobs": len(chosen)}, text)
    if not options["ids"] and len(chosen) >= ASK_FROM and not options["yes"]:
        confirm(f"This will {verb.command} {len(chosen)} jobs. Continue? [y/N] ")
    answers: list[dict[str, Any]] = []
    errors: list[tuple[NamedJob, DelayqError]] = []
    with progress(len(chosen), verb.command, quiet=options["json"]) as advance:
        for job, answer in apply(verb.each, chosen, **how):
            if isinstance(answer, DelayqError):
                errors.append((job, answer))
            else:
                answers.append({"id": job.id, "change": answer})
                advance(1)
    if not errors:
        return _report(out, options, verb, answers)
    if len(chosen) == 1 or (not answers and len({str(error) for _, error in errors}) == 1):
        raise errors[0][1]
    if answers:
        _report(out, options, verb, answers)
    unknown = [(job, error) for job, error in errors if is_unknown(error)]
    left = [(job, error) for job, error in errors if not is_unknown(error)]
    texts = []
    if left:
        texts.append(f"{len(left)} of {len(chosen)} jobs {pluralize(len(left), 'was,were')} not changed. {_causes(left)}")
    if unknown:
        texts.append(
            f"The result for {len(unknown)} of {len(chosen)} jobs is unknown. {_causes(unknown)} Look at these jobs again before you "
            "repeat the command."
        )
    raise CommandError(" ".join(texts)) from errors[-1][1]


def _causes(errors: Sequence[tuple[NamedJob, DelayqError]]) -> str:
    """The jobs of each error."""
    causes: dict[str, list[str]] = {}
    for job, error in errors:
        causes.setdefault(str(error), []).append(ids.short(job.id))
    return " ".join(f"{', '.join(jobs[:5])}{', …' * (len(jobs) > 5)}: {cause}" for cause, jobs in causes.items())


def _report(out: TextIO, options: dict[str, Any], verb: Verb, answers: Sequence[dict[str, Any]]) -> int:
    counts = Counter(answer["change"] for answer in answers)
    all_done = counts[Change.DONE] == len(answers)
    if options["json"]:
        print_json(out, {"verb": verb.command, "jobs": list(answers), "counts": {change.value: counts[change] for change in counts}})
    elif not answers:
        out.write("No matching jobs.\n")
    else:
        parts = [f"{counts[change]} {WORDS[change]}" for change in Change if counts[change]]
        out.write(f"{verb.command}: {', '.join(parts)}.\n")
        for answer in answers if len(answers) <= ASK_FROM else ():
            if answer["change"] is not Change.DONE:
                name = answer.get("key") or ids.short(answer["id"])
                asked = answer["change"] is Change.RUNNING and Change.RUNNING in verb.effects
                note = (ABORTED if options["abort"] else ASKED) if asked else ""
                out.write(f"  {name}: {WORDS[answer['change']]}.{note}\n")
    return 0 if all_done else 1


def purge(out: TextIO, options: dict[str, Any]) -> int:
    """Cancel all scheduled jobs in a queue.

    Running jobs continue. To confirm, you must type the name of the queue. The JSON document has `queue` and `cancelled`.
    """
    queue = known_queue(options["queue"]) or ""
    counted, lacking = stores.from_each([queue], lambda reach: stores.inspector(reach).parts([queue]))
    total, missing = sum(depth.scheduled for depth in counted.values()) + overview.count_unpublished(queue), lacking.labels
    if options["dry_run"]:
        text = f"Scheduled jobs of {queue} that would be cancelled: {total}."
        return print_result(out, options, {"queue": queue, "would_cancel": total}, text, missing or None)
    if (total or missing) and not options["yes"]:
        without = f" (not counting {', '.join(missing)}, which cannot be reached)" if missing else ""
        question = f"This cancels all scheduled jobs of {queue}: {total}{without}. Type the name of the queue to continue: "
        confirm(question, queue)
    done = 0
    try:
        with progress(total, f"purging {queue}", quiet=options["json"]) as advance:
            for cancelled in queues.purge(queue, actor=actor(), reason=options["reason"]):
                done += cancelled
                advance(cancelled)
    except StoreUnavailable:
        if done:
            _purged(out, options, queue, done, missing)  # reports what was already cancelled
        raise
    return _purged(out, options, queue, done)


def _purged(out: TextIO, options: dict[str, Any], queue: str, done: int, missing: Mapping[str, StoreUnavailable] | None = None) -> int:
    text = f"Cancelled scheduled jobs of {queue}: {done}. Running jobs continue."
    return print_result(out, options, {"queue": queue, "cancelled": done}, text, missing)


def prune(out: TextIO, options: dict[str, Any]) -> int:
    """Delete rows that are older than RETENTION allows.

    Workers with the role mirror do this automatically. If ARCHIVE is set, it receives the jobs first. The JSON
    document has `deleted` or `would_delete`.
    """
    config = conf.get()
    queues = [config.queue(name) for name in named_queues(options)]
    loops: list[PruneLoop | OldOperationsLoop | OldTicksLoop] = []
    counts: dict[str, int] = {}
    for queue in queues:
        rows = PruneLoop(stores.places, queue, archive.taker(config.archive))
        now = rows.now()
        counts |= {f"{queue.name} {state}": found.count() for state, found in old_jobs(queue, now)}
        counts[f"{queue.name} set_aside"] = old_set_aside(queue, now).count()
        loops.append(rows)
    if options["queue"] is None:
        operations, ticks = OldOperationsLoop(stores.places, config), OldTicksLoop(stores.places, config)
        counts["operations"] = old_operations(config, operations.now()).count()
        counts["ticks"] = old_ticks(config, ticks.now()).count()
        loops += [operations, ticks]
    total = sum(counts.values())
    if options["dry_run"]:
        return print_result(out, options, {"would_delete": counts}, f"Rows that would be deleted: {total}.")
    if total and not options["yes"]:
        confirm(f"This permanently deletes rows: {total}. Continue? [y/N] ")
    done = 0
    with progress(total, "pruning", quiet=options["json"]) as advance:
        for loop in loops:
            while gone := loop.prune():
                done += gone
                advance(gone)
    return print_result(out, options, {"deleted": done}, f"Deleted rows: {done}.")


def print_result(
    out: TextIO, options: dict[str, Any], document: dict[str, Any], text: str, missing: Mapping[str, StoreUnavailable] | None = None
) -> int:
    """Prints the document with --json, or else the text. `missing`: queues that were left out, with the error, for exit code 1."""
    if options["json"]:
        left = {} if missing is None else {"missing": {name: str(why) for name, why in missing.items()}}
        print_json(out, {**document, **left})
    else:
        out.write(f"{text}\n")
        for name, why in (missing or {}).items():
            out.write(f"{name} is not included: {one_line(str(why))}\n")
    return 1 if missing else 0


def confirm(question: str, name: str = "") -> None:
    """Returns after a yes, or after this name. Raises CommandError after any other answer, or without a terminal."""
    if not sys.stdin.isatty():
        raise UsageError("This command needs confirmation, but standard input is not a terminal. Add --yes or --dry-run.")
    sys.stderr.write(question)
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if name and answer != name:
        raise CommandError("Nothing was changed: this is not the name of the queue.")
    if not name and answer.lower() not in ("y", "yes"):
        raise CommandError("Nothing was changed.")
