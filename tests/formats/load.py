"""Puts the rows of a dump into the database of the project: `python -m tests.formats.load DUMP NOW_MS`, migrated before."""

import json
import sys
from pathlib import Path

import django


def main() -> None:
    """Inserts all of them."""
    django.setup()
    from tests.formats.dump import write_rows

    whole = json.loads(Path(sys.argv[1]).read_text())
    write_rows(whole["rows"], using="default", made_ms=whole["made_ms"], now_ms=int(sys.argv[2]))


if __name__ == "__main__":
    main()
