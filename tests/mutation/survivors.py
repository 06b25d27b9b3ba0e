"""Faults that no test notices, each with the reason: most change nothing that anybody could see. A key is what `mutant.py` makes of the
file, the text of the line and the rule; one that no rule makes any more fails the tests.
"""

from __future__ import annotations

SURVIVORS: dict[str, str] = {}
