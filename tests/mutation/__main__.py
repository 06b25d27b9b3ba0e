"""Makes faults by rule (lua.py, python.py) in the files that targets.py names, and runs the tests on each until one fails.

`python -m tests.mutation` judges all of them; `--sample 20` one in twenty, always the same ones; `--only claim` those with that word in
their key. It prints a table, and ends with 1 when a fault survives that survivors.py does not name, or one is noticed that it names.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.mutation import targets
from tests.mutation.judge import Verdict, judged
from tests.mutation.mutant import Mutant, sample
from tests.mutation.survivors import SURVIVORS


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", default="", help="a part of the key: file, line or rule")
    parser.add_argument("--sample", type=int, default=1, help="one in so many")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--at-once", type=int, default=2, help="judges side by side")
    parser.add_argument("--known", action="store_true", help="judge those of survivors.py, too")
    parser.add_argument("--log", type=Path, help="a line for each fault")
    given = parser.parse_args(words)
    chosen = [mutant for file in targets.files() for mutant in targets.mutants(file) if given.only in mutant.key]
    chosen = sample(chosen, given.sample, given.seed)
    asked = [mutant for mutant in chosen if given.known or mutant.key not in SURVIVORS]
    began = time.monotonic()
    verdicts = []
    for verdict in judged(asked, given.at_once):
        verdicts.append(verdict)
        line = f"{verdict.seconds:5.1f} s  {verdict.mutant.key} (line {verdict.mutant.line}) -> {verdict.by or 'SURVIVES'}"
        if given.log:
            with given.log.open("a") as log:
                log.write(line + "\n")
        if not verdict.by and verdict.mutant.key not in SURVIVORS:
            print(line, flush=True)
    print(table(chosen, verdicts))
    wrong = [verdict for verdict in verdicts if bool(verdict.by) == (verdict.mutant.key in SURVIVORS)]
    for verdict in wrong:
        if verdict.by:
            print(f"survivors.py names what {verdict.by} notices: {verdict.mutant.key}")
    print(f"{len(wrong)} are not as they should be; {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


def table(mutants: Sequence[Mutant], verdicts: Sequence[Verdict]) -> str:
    """A line per file: how many faults, how many noticed, how many not, how many are known to change nothing; seconds."""
    rows: dict[str, Counter[str]] = {}
    for mutant in mutants:
        rows.setdefault(mutant.file, Counter())["mutants"] += 1
        rows[mutant.file]["known"] += mutant.key in SURVIVORS
    for verdict in verdicts:
        row = rows[verdict.mutant.file]
        row["caught" if verdict.by else "survivors"] += 1
        row["tenths"] += round(verdict.seconds * 10)
    rows["all"] = sum(rows.values(), Counter())
    heads = ("mutants", "caught", "survivors", "known")
    lines = [f"{'file':42}" + "".join(f"{head:>10}" for head in heads) + f"{'seconds':>10}"]
    for file, row in rows.items():
        lines.append(f"{file:42}" + "".join(f"{row[head]:>10}" for head in heads) + f"{row['tenths'] / 10:>10.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
