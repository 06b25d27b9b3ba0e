"""The subcommand fair."""

from __future__ import annotations

from typing import Any, TextIO

from django_delayq import clock, conf
from django_delayq.management.job_filters import known_queue
from django_delayq.management.output import print_json, print_table
from django_delayq.producer.stores import stores
from django_delayq.store.reads import queue_depth


def fair(out: TextIO, options: dict[str, Any]) -> int:
    """List the fair words of unstarted jobs, with their numbers. Due jobs of different words start in turns. The JSON document is a
    list of `queue`, `word`, `waiting` and `oldest`, the earliest date.
    """
    known_queue(options["queue"])
    found: list[dict[str, Any]] = []
    more: list[str] = []
    for queue in [options["queue"]] if options["queue"] else list(conf.get().queues):
        seen = queue_depth.fair_words(stores.places, [store.keys for store in stores.parts(queue)])
        more += [queue] if seen.cut else []
        for one in seen.figures:
            oldest = clock.from_ms(one.oldest_ms) if one.oldest_ms else None
            found.append({"queue": queue, "word": one.word, "waiting": one.waiting, "oldest": oldest})
    if options["json"]:
        print_json(out, found)
    elif not found:
        out.write("No waiting job has a fair word.\n")
    else:
        print_table(out, ("queue", "word", "waiting", "earliest date"), [tuple(one.values()) for one in found])
        out.writelines(f"The queue {queue} has more words than were read.\n" for queue in more)
    return 0
