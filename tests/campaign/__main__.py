"""`python -m tests.campaign --seconds 60 --seed 1`."""

from __future__ import annotations

import sys

from tests.campaign.run import main

if __name__ == "__main__":
    sys.exit(main())
