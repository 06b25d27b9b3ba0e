"""System checks of what `TASKS` says to this backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.core.checks import CheckMessage

from django_delayq import conf
from django_delayq.exceptions import ConfigError
from django_delayq.findings import check_message
from django_delayq.producer.options import DURABILITIES
from django_delayq.producer.task import Task, made
from django_delayq.text import did_you_mean

OPTIONS: Final = ("max_attempts", "backoff", "timeout", "durability")


def found(alias: str, queues: set[str], options: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """The mistakes of one alias of TASKS."""
    where = f'TASKS["{alias}"]["OPTIONS"]'
    if not isinstance(options, Mapping):
        yield check_message("E031", f"{where} must be a dict, not {options!r}.")
        options = {}
    for name in options:
        if name not in OPTIONS:
            hint = f"The keys known here are: {', '.join(OPTIONS)}."
            yield check_message("E030", f'{where}["{name}"] is no option{did_you_mean(name, OPTIONS)}.', hint)
    for name in OPTIONS:
        if name in options and (wrong := _wrong(where, name, options[name])):
            yield check_message("E031", wrong)
    if conf.problems():
        return
    for name in sorted(queues - set(conf.get().queues), key=str):
        yield check_message(
            "E032",
            f'TASKS["{alias}"]["QUEUES"] has the queue {name!r}, which DELAYQ["QUEUES"] does not list.',
            f"Add it there, or name one of: {', '.join(sorted(conf.get().queues))}.",
        )


def _wrong(where: str, name: str, value: Any) -> str:
    """What is wrong with a value; "" for nothing."""
    if name == "durability":
        return "" if value in DURABILITIES else f"{where}: durability={value!r} must be 'outbox' or 'redis'."
    if name == "max_attempts" and value == 0:
        return f"{where}: max_attempts=0 means no limit, which only a job that expires may have: say it of the task, by using()."
    try:
        made(Task, found, where=where, **{name: value})
    except ConfigError as error:
        return str(error)
    return ""
