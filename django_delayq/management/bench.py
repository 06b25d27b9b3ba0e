"""`delayq bench`: how fast it is here, on the user's own servers, with a plain verdict."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TextIO

from django.core.management.base import CommandError

from django_delayq import conf
from django_delayq.management.bench_run import Bench, Figures, Size
from django_delayq.management.job_filters import USAGE
from django_delayq.management.output import print_json

Grade = Literal["good", "fair", "poor"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One judgement: a figure in words, how good it is, and what to look at if it is not."""

    text: str
    grade: Grade
    advice: str = ""


ASK: Final = (
    "For about a minute this puts a few ten thousand jobs of its own into Redis and the database, runs them, and removes them again. "
    "Others on these servers will notice. Go on? [y/N] "
)


SIZE: Final = Size()


def bench(out: TextIO, options: dict[str, Any]) -> int:
    """Measures and judges. Exit code 1 if a job was lost."""
    if not options["yes"]:
        _ask()
    config = conf.get()
    figures: dict[str, Figures] = {}
    with Bench(config, SIZE) as trial:
        for name in ("ping", "schedule", "outbox", "work", "mirror"):
            if not options["json"]:
                sys.stderr.write(f"{STEPS[name]} …\n")
                sys.stderr.flush()
            figures[name] = getattr(trial, name)()
    lines = list(judge(figures))
    verdict = _verdict(figures, lines)
    if options["json"]:
        told = [{"text": line.text, "grade": line.grade, "advice": line.advice} for line in lines]
        print_json(out, {"figures": figures, "judgements": told, "verdict": verdict})
    else:
        for line in lines:
            out.write(f"{line.grade:<5} {line.text}\n")
            if line.advice:
                out.write(f"      {line.advice}\n")
        out.write(f"\n{verdict}\n")
    return 1 if figures["work"]["lost"] else 0


STEPS: Final = {
    "ping": "asking Redis",
    "schedule": "putting jobs into Redis",
    "outbox": "putting jobs into the database",
    "work": "running jobs",
    "mirror": "writing what happened into the database",
}


def judge(figures: dict[str, Figures]) -> Iterator[Verdict]:
    """What the figures mean."""
    ping, outbox, work, mirror = (figures[name] for name in ("ping", "outbox", "work", "mirror"))
    yield Verdict(
        f"Redis answers within {ping['p50']:.2f} ms, and within {ping['p99']:.2f} ms 99 times of 100.",
        *_graded(ping["p99"], 2, 20, "Redis is far away or busy: every claim and every schedule() waits that long."),
    )
    yield Verdict(
        f"schedule() with redis durability: {figures['schedule']['single']:,.0f} jobs a second per process; "
        f"schedule_many: {figures['schedule']['many']:,.0f}.",
        "good",
    )
    yield Verdict(
        f"A row in the outbox takes {outbox['p50']:.2f} ms, and {outbox['p99']:.2f} ms 1 time of 100; "
        f"schedule_many writes {outbox['many']:,.0f} rows a second.",
        *_graded(outbox["p50"], 10, 50, "Commits are slow: look at the disk and the network of the database."),
    )
    yield Verdict(
        f"A job starts {work['p50']:.0f} ms after its date, and at most {work['p99']:.0f} ms 99 times of 100.",
        *_graded(work["p99"], 50, 500, "Jobs start late on an idle queue: the machine or Redis is busy with something else."),
    )
    yield Verdict(
        f"One worker process runs {work['rate']:,.0f} jobs a second that do nothing.",
        *_graded(-work["rate"], -2000, -200, "The machine or Redis is slow or busy."),
    )
    yield Verdict(
        f"The mirror writes {mirror['rate']:,.0f} jobs a second into the database.",
        *_graded(
            -mirror["rate"],
            -500,
            -50,
            "If more jobs run than that for long, the mirror falls behind and events fill Redis.",
        ),
    )
    if work["lost"]:
        yield Verdict(
            f"{work['lost']:.0f} jobs did not run within a minute.",
            "poor",
            "`delayq doctor` may say why; the worker's log too.",
        )


def _graded(value: float, good: float, fair: float, advice: str) -> tuple[Grade, str]:
    if value <= good:
        return "good", ""
    return ("fair" if value <= fair else "poor"), advice


def _verdict(figures: dict[str, Figures], lines: list[Verdict]) -> str:
    sustained = {"the worker process": figures["work"]["rate"], "the mirror": figures["mirror"]["rate"]}
    narrowest = min(sustained, key=lambda name: sustained[name])
    if figures["work"]["lost"]:
        return "Verdict: not fit for work as it is: jobs did not run."
    worst = "poor" if any(line.grade == "poor" for line in lines) else "fair" if any(line.grade == "fair" for line in lines) else "good"
    begin = {
        "good": "fit for work",
        "fair": "fit for work, but look at the lines marked fair",
        "poor": "look at the lines marked poor",
    }
    return (
        f"Verdict: {begin[worst]}. One worker process lasts for {sustained[narrowest]:,.0f} short jobs a second, "
        f"{sustained[narrowest] * 86_400 / 1e6:,.0f} million a day; {narrowest} is the narrowest place."
    )


def _ask() -> None:
    if not sys.stdin.isatty():
        raise CommandError("There is nobody to confirm this. Add --yes.", returncode=USAGE)
    sys.stderr.write(ASK)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was done.")
