"""The subcommands schedule, push, deliver and offer. They call the public functions, and store the actor and the reason in the meta of
the job.
"""

from __future__ import annotations

import json
import shlex
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TextIO

from django.core.management.base import CommandError

import django_delayq as delayq
from django_delayq import clock, codec, conf
from django_delayq.exceptions import ConfigError, PayloadError, QueueUnknown, TargetRefused
from django_delayq.management import UsageError
from django_delayq.management.change_commands import actor, print_result
from django_delayq.management.job_filters import known_queue, moment, near_task, seconds
from django_delayq.management.output import shown
from django_delayq.producer import scopes
from django_delayq.producer.job import Job
from django_delayq.producer.options import OPTIONS
from django_delayq.producer.task import Task, registry
from django_delayq.states import SCHEDULED_BY, SCHEDULED_WHY

STDIN: Final = "-"
OWN: Final = {"django_delayq.deliver": "delayq deliver", "django_delayq.offer": "delayq offer"}


def add_put_commands(add: Callable[..., ArgumentParser]) -> None:
    """Adds the parsers. `add` creates one from a name and a function."""
    one = add("schedule", schedule)
    one.add_argument("task", metavar="TASK", help="the name of the task")
    one.add_argument("--args", dest="task_args", default="[]", metavar="JSON", help="positional arguments, such as '[1]'")
    one.add_argument("--kwargs", dest="task_kwargs", default="{}", metavar="JSON", help='keyword arguments, such as \'{"note": "x"}\'')
    one.add_argument("surplus", nargs="*", help=SUPPRESS)
    _options(one)
    message = add("push", push)
    message.add_argument("queue", metavar="QUEUE", help="the name of the queue")
    message.add_argument("body", metavar="BODY", help="a JSON value, or - to read it from standard input")
    _options(message, "queue", "timeout")
    delivery = add("deliver", deliver)
    delivery.add_argument("url", metavar="URL", help="the URL to send the request to")
    delivery.add_argument("--body", metavar="JSON", help="the body as JSON, or - to read it from standard input")
    delivery.add_argument("--data", metavar="TEXT", help="the body as text, or - to read it from standard input")
    delivery.add_argument("--method", default="POST", type=str.upper, help="the HTTP method (default: POST)")
    delivery.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="a header; repeat the option for more")
    delivery.add_argument(
        "--secret-header",
        action="append",
        default=[],
        metavar="'NAME: SECRET'",
        help="a header with the name of a secret in DELAYQ['HTTP']['SECRETS'], such as 'Authorization: Bearer partner-token'",
    )
    delivery.add_argument("--secret", help="the name of a secret in DELAYQ['HTTP']['SECRETS'] that signs each attempt")
    delivery.add_argument("--redirects", type=int, default=0, help="how many 307 and 308 redirects to follow (default: 0)")
    delivery.add_argument("--on-failure", metavar="TASK", help="a task to schedule if the delivery fails permanently")
    _options(delivery)
    offered = add("offer", offer)
    offered.add_argument("target", metavar="TARGET", help="the name of a target in DELAYQ['TARGETS']")
    offered.add_argument("body", metavar="BODY", help="a JSON value, or - to read it from standard input")
    _options(offered)


def _options(parser: ArgumentParser, *without: str) -> None:
    """Adds the options of `delayq.schedule`."""
    for name, option in OPTIONS.items():
        if option.kind is not None and name not in without:
            example = EXAMPLES.get(option.kind, "")
            kind: dict[str, Any] = {"choices": option.choices} if option.choices else {"type": int} if option.kind == "integer" else {}
            parser.add_argument(f"--{name.replace('_', '-')}", metavar=METAVARS.get(option.kind), help=option.help + example, **kind)
    parser.add_argument("--scope", help="the scope of the job, such as a tenant (default: the one that SCOPE returns)")
    parser.add_argument("--reason", default="", help="the reason, which is stored with the job")


def schedule(out: TextIO, options: dict[str, Any]) -> int:
    """Schedule a job for a task. The JSON document has `id`, `uuid`, `queue`, `task`, `key`, `scope`, `run_at` and `created`."""
    name = options["task"]
    known = registry.find(name)
    if name in OWN or (known is not None and known.own):
        way = f" Use manage.py {OWN[name]}." if name in OWN else ""
        raise UsageError(f"TASK {name}: you cannot schedule this task directly.{way}")
    task = _task(name, "TASK")
    if options.get("surplus"):
        meant = shlex.quote(f"[{', '.join(map(_as_json, options['surplus']))}]")
        raise UsageError(f"Pass the arguments of the task as JSON: --args {meant}")
    args, kwargs = _json(options["task_args"], "--args", list), _json(options["task_kwargs"], "--kwargs", dict)
    with _usage(options):
        job = task.using(**_given(options)).schedule(*args, **kwargs)
    return _print_job(out, options, job, f"a job of {task.name}")


def push(out: TextIO, options: dict[str, Any]) -> int:
    """Add a message to a queue that your own consumers pull from. The JSON document is that of `schedule`."""
    queue = known_queue(options["queue"]) or ""
    body = _json(_text(options["body"]), "BODY")
    with _usage(options):
        job = delayq.push(queue, body, **{name: value for name, value in _given(options).items() if name != "queue"})
    return _print_job(out, options, job, f"a message in {queue}")


def deliver(out: TextIO, options: dict[str, Any]) -> int:
    """Schedule an HTTP request, which workers retry until the response is 2xx. The JSON document is that of `schedule`."""
    body: dict[str, Any] = {}
    if options["body"] is not None:
        body["json"] = _json(_text(options["body"]), "--body")
    if options["data"] is not None:
        body["data"] = _text(options["data"])
    on_failure = options["on_failure"] and _task(options["on_failure"], "--on-failure")
    headers: dict[str, Any] = dict(_header(text, "--header") for text in options["header"])
    for text in options["secret_header"]:
        name, value = _header(text, "--secret-header")
        prefix, space, secret = value.rpartition(" ")
        headers[name] = {"secret": secret, "prefix": prefix + space}
    with _usage(options):
        own = {name: options[name] for name in ("method", "secret", "redirects")}
        job = delayq.deliver(options["url"], headers=headers, on_failure=on_failure or None, **own, **body, **_given(options))
    return _print_job(out, options, job, f"a delivery to {options['url']}")


def offer(out: TextIO, options: dict[str, Any]) -> int:
    """Schedule a message that a worker adds to a list or stream in Redis. The JSON document is that of `schedule`."""
    body = _json(_text(options["body"]), "BODY")
    with _usage(options):
        job = delayq.offer(body, to=options["target"], **_given(options))
    return _print_job(out, options, job, f"an offer to {options['target']}")


@contextmanager
def _usage(options: dict[str, Any]) -> Iterator[None]:
    """Calls in the block have the scope of the options. Reports errors of the options with exit code 2. Errors of the settings are
    raised.
    """
    conf.get()
    try:
        with scopes.chosen(options["scope"]):
            yield
    except (ConfigError, PayloadError, QueueUnknown, TargetRefused) as error:
        raise UsageError(str(error)) from error


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Reads the options that were given, for `delayq.schedule`."""
    given = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    found = {
        name: read(value, f"--{name.replace('_', '-')}") if (read := READERS.get(OPTIONS[name].kind)) else value
        for name, value in given.items()
    }
    for name in ("key", "scope"):
        if options[name] == "":  # for example from an unset shell variable
            raise UsageError(f"--{name} is empty.")
    if "queue" in found:
        known_queue(found["queue"])
    meta, reason = found.get("meta", {}), options["reason"]
    for name in meta.keys() & {SCHEDULED_BY, SCHEDULED_WHY}:
        raise UsageError(f"--meta cannot contain {name}: the command uses this name itself.")
    return {**found, "meta": {**meta, SCHEDULED_BY: actor(), **({SCHEDULED_WHY: reason} if reason else {})}}


def _expires(text: str, where: str) -> Any:
    try:
        return seconds(text, where)
    except CommandError:
        return moment(text, where, "a duration such as 90s, 1h30m or 2d, or ")


def _task(name: str, where: str) -> Task[..., Any]:
    found = registry.find(name)
    if found is None:
        raise UsageError(f"{where} {name}: no such task{near_task(name, registry.names())}.")
    return found


def _text(given: str) -> str:
    if given != STDIN:
        return given
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"Standard input is not valid UTF-8: {error}.") from None


def _as_json(word: str) -> str:
    try:
        codec.loads(word.encode())
    except (PayloadError, UnicodeEncodeError):
        return json.dumps(word)
    return word


def _json(text: str, where: str, kind: type | None = None) -> Any:
    try:
        found = codec.loads(text.encode())
    except PayloadError as error:
        raise UsageError(f"{where}: {error}. Put text in quotation marks, as in '\"x\"'.") from None
    except UnicodeEncodeError:
        raise UsageError(f"{where} is not valid UTF-8.") from None
    if kind is not None and type(found) is not kind:
        wanted = "a list, such as '[1, 2]'" if kind is list else """an object, such as '{"a": 1}'"""
        raise UsageError(f"{where} must be {wanted}.")
    return found


EXAMPLES: Final = {"duration": ", such as 90s, 1h30m or 2d", "date": ", such as 2030-01-31T18:00:00+01:00"}
METAVARS: Final = {"date": "DATE", "object": "JSON"}
READERS: Final[Mapping[str | None, Callable[[Any, str], Any]]] = {
    "duration": seconds,
    "date": moment,
    "expiry": _expires,
    "object": partial(_json, kind=dict),
}


def _header(text: str, where: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not value.strip():
        raise UsageError(f"{where} {text}: write 'Name: value'.")
    return name.strip(), value.strip()


def _print_job(out: TextIO, options: dict[str, Any], job: Job, what: str) -> int:
    fields = ("queue", "task", "key", "scope", "run_at", "created")
    document = {"id": job.id, "uuid": str(job.id), **{name: getattr(job, name) for name in fields}}
    if job.created is False:
        text = f"{shown(job.id)} already has the key {job.key!r}. Nothing was scheduled."
    else:
        inlined = conf.get().inline and job.created
        due = "" if inlined or job.run_at is None else f", due {'now' if job.run_at <= clock.now() else shown(job.run_at)}"
        later = " It is not in Redis yet. The relay will publish it." if job.created is None else ""
        text = f"{shown(job.id)}: {what}{due}.{later}"
    return print_result(out, options, document, text)
