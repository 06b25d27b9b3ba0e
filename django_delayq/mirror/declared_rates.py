"""The loop that writes the rates in the code of tasks, so that jobs that wait follow a change of the code."""

from __future__ import annotations

import hashlib
from typing import Final

from django_delayq import conf
from django_delayq.logger import Logger
from django_delayq.models import database
from django_delayq.models.periodic import NAME
from django_delayq.producer import queues
from django_delayq.producer.outbox import declarations, pauses
from django_delayq.producer.outbox.pauses import DECLARED, NONE
from django_delayq.producer.task import registry

IDLE: Final = 60.0
logger = Logger("django_delayq.restore")


class DeclaredRates:
    """1. Notes the rates in this code and in the settings. Workers with other code do the same. 2. Writes those that came last into the
    rows of their tasks and queues. One without a rate is only written if it had one. `PauseLoop` sends the rows to Redis.
    """

    def poll(self) -> float:
        """One pass. Returns seconds to sleep.

        Raises:
            DatabaseError: call again later.
        """
        there = {row.word: row.rate for row in pauses.of_words()}
        rates = {task: task.rated.pace.told() if task.rated else NONE for task in registry}
        declared = {f"{DECLARED}{name}": rate for task, rate in rates.items() for name in registry.spellings(task.name)}
        for queue in conf.get().queues.values():
            declared[f"{DECLARED}@{queue.name}"] = queue.rate.told() if queue.rate else NONE
        mine = {word: rate for word, rate in declared.items() if rate != NONE or word in there}
        if mine:
            now = database.now()
            marks = {word: (f" {word}"[:NAME], hashlib.sha256(f"{word} {rate}".encode()).hexdigest()) for word, rate in mine.items()}
            seen = declarations.note(marks.values(), now)
            for word, rate in mine.items():
                if there.get(word) != rate and declarations.came_last(*marks[word], seen.values(), now):
                    pauses.write(word, paused=True, parts=queues.partitions(word), rate=rate, actor="code")
                    logger.info("%s has the rate of the newest code now: %s", word.removeprefix(DECLARED), rate)
        return IDLE
