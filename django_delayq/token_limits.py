"""Which jobs the sender of a job may know of. A token leads to some tasks; that limit travels in the meta of a job with a key, so that
every process that publishes the job applies it to the holder of the key.
"""

from __future__ import annotations

import json
from typing import Final

ONLY: Final = "delayq.only"  # the key of a job's meta: a list of task names
_MARK: Final = json.dumps(ONLY).encode()


def in_payload(payload: bytes) -> tuple[str, ...] | None:
    """The tasks of whose jobs the sender may know; None: of all jobs. A limit that cannot be read allows none."""
    if _MARK not in payload:
        return None
    try:
        match json.loads(payload):
            case [_, _, {"meta": {"delayq.only": list() as tasks}}]:
                return tuple(task for task in tasks if isinstance(task, str))
            case [_, _, {"meta": {"delayq.only": _}}]:
                return ()
    except (ValueError, RecursionError):
        return ()
    return None  # the text is in the arguments
