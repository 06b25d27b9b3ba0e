"""Faults in the Python side of the store and in the worker."""

from __future__ import annotations

from tests.model.mutant import Mutant


def store(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, "store/queue.py", old, new, "store")


def worker(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(name, f"worker/{file}.py", old, new, "worker", test)


STORE = [
    store(
        "the delay of a retry is not sent",
        "(id, attempt, fence, outcome, delay_ms, detail,",
        "(id, attempt, fence, outcome, 0, detail,",
    ),
    store(
        "the detail is not sent",
        "(id, attempt, fence, outcome, delay_ms, detail,",
        '(id, attempt, fence, outcome, delay_ms, b"",',
    ),
    store("progress is not sent", 'done.get(id, "")', '""'),
    store("no tombstone is asked for", 'reason, lacking, "", *map', 'reason, "", "", *map'),
    store("how the row stands is not sent", "reason, lacking, unless, encode", 'reason, "", unless, encode'),
    store("the ground that answered is not sent", "reason, lacking, unless, encode", 'reason, lacking, "", encode'),
    store("the ground of a publication is not sent", "max_events, ground, mode]", 'max_events, "", mode]'),
    store("everybody has asked the rows", "max_events, ground, mode]", 'max_events, ground, "told"]'),
    store("everybody vouches", '"1" if vouched else ""', '"1"'),
    store("the policy is always keep", "                item.on_conflict,\n", '                "keep",\n'),
    store("the limit of a purge is not sent", "actor, reason, min(limit, MOST))", "actor, reason, MOST)"),
    store("a key is looked for in capitals", "unless, encode.target(job))\n", "unless, encode.target(job).upper())\n"),
    store(
        "resume pauses",
        'self.run("pause", now_ms, actor, reason, "0")',
        'self.run("pause", now_ms, actor, reason, "1")',
    ),
    store(
        "the ground is not sent",
        "lease_ms, max_crashes, ground, max_events",
        'lease_ms, max_crashes, "", max_events',
    ),
    store("an outage is not told", "max_events, encode.flag(wary), away_ms)", "max_events, encode.flag(wary), 0)"),
]
WORKER = [
    worker(
        "a lost reply, a fresh nonce",
        "process/mover",
        "        if not watch.nonce:\n",
        "        if True:\n",
        "test_a_claim_whose_reply_was_lost_is_sent_again_and_gives_the_same_jobs",
    ),
    worker(
        "more is claimed than can run",
        "process/mover",
        "+ ahead - in_hand",
        "+ ahead",
        "test_no_more_is_claimed_than_threads_can_run",
    ),
    worker(
        "what waits is never given back",
        "process/mover",
        "        self._give_back_stale(now)\n",
        "",
        "test_jobs_that_wait_too_long_are_given_back",
    ),
    worker(
        "a settled row is not freed",
        "process/settler",
        "        self._free.extend(rows)\n",
        "",
        "test_a_job_goes_from_the_schedule_to_its_end",
    ),
    worker(
        "a batch is dropped after trouble",
        "process/settler",
        "            line, batch = self._batches[0]\n",
        "            line, batch = self._batches.popleft()\n            self._batches.append((line, []))\n",
        "test_settling_goes_on_with_the_same_batch_after_trouble",
    ),
    worker(
        "a lost lease is not told",
        "supervisor/keeper",
        "holdings.state(held) not in (None, SETTLING)",
        "False",
        "test_the_keeper_tells_of_lost_leases_and_cancel_requests",
    ),
    worker(
        "a cancel request is not told",
        "supervisor/keeper",
        'if answer == "cancel":',
        'if answer == "stop":',
        "test_the_keeper_tells_of_lost_leases_and_cancel_requests",
    ),
    worker(
        "progress is not passed on",
        "supervisor/keeper",
        "for _, held in kept if held.progress_turn}",
        "for _, held in kept if False}",
        "test_the_keeper_passes_progress_on",
    ),
    worker(
        "a dead process counts no crash",
        "supervisor/process_recovery",
        '"snooze" if waited else dead.ran',
        '"snooze"',
        "test_what_a_dead_process_held_is_given_back",
    ),
    worker(
        "a claim under way is not asked for",
        "supervisor/process_recovery",
        "dead.claims[number] or secrets.token_hex(8)",
        "secrets.token_hex(8)",
        "test_a_claim_that_stands_nowhere_is_asked_for_and_given_back",
    ),
    worker(
        "the ladder of a function is not asked",
        "supervisor/deadlines",
        "if held.retry_ms != ASK:",
        "if True:",
        "test_a_backoff_function_is_asked_at_the_hard_deadline",
    ),
]
