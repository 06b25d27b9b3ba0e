"""The subcommand embedded: whether the server of the project's own runs, and its end."""

from __future__ import annotations

from typing import Any, Final, TextIO

from django.core.management.base import CommandError

from django_delayq import conf
from django_delayq.management.job_filters import USAGE
from django_delayq.management.output import print_json
from django_delayq.setting_readers import is_embedded
from django_delayq.store.connection import embedded
from django_delayq.store.connection.address import address

ACTS: Final = ("status", "stop")


def embedded_server(out: TextIO, options: dict[str, Any]) -> int:
    """Looks at it, or stops it. Nothing is started."""
    spec = conf.get().redis
    if not is_embedded(spec):
        raise CommandError(
            f'DELAYQ["REDIS"] is {address(spec)}, which is not an embedded server. Stop that server in the way it was started.',
            returncode=USAGE,
        )
    directory = None if isinstance(spec, str) else spec["EMBEDDED"]
    before = embedded.look(directory)
    stopped = options["act"] == "stop" and embedded.stop(directory)
    after = embedded.look(directory) if stopped else before
    if options["json"]:
        print_json(out, {"directory": str(after.directory), "pid": after.pid, "answers": after.answers, "stopped": stopped})
    elif stopped:
        out.write(
            f"Stopped the server. Its data is saved in {before.directory}. The next process that needs the server starts it again.\n"
        )
    elif not after.pid:
        out.write(f"No server is running in {after.directory}.\n")
    else:
        how = "and answers" if after.answers else "and does not answer"
        out.write(
            f"A server is running in {after.directory}, process {after.pid}, {how}. To stop it, run manage.py delayq embedded stop.\n"
        )
    return 0 if options["act"] == "stop" or after.answers else 1
