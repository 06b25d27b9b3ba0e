"""Faults that no test notices, each with the reason. A key is made in mutant.py, of file, text of the line and rule; one that no rule
makes any more fails the tests, and one that a test has come to notice fails the run.
"""

from __future__ import annotations

NOTHING = "It changes nothing: "
COSTS = "It changes only what it costs: "
MARGIN = "It moves a margin that nobody is promised: "
OPEN = "No test within one process notices it yet: "

SURVIVORS = {
    "store/lua/claim.lua: local SOON = 50 -- ms [one less]": MARGIN + "how soon a worker asks again on ground that is not confirmed.",
    "store/lua/claim.lua: if not generation or not string.find(generation, '^%w+$') or #generation > 64 then -- none, or none of ours"
    " [one less]": MARGIN + "no generation of ours is so long.",
    "store/lua/claim.lua: generation = string.sub(nonce, 1, 40) .. seconds .. us [one less]": NOTHING + "a nonce has 16 letters.",
    "store/lua/claim.lua: asked = false [false to true]": COSTS + "a look into an empty hash per job of this one claim.",
    "store/lua/confirm.lua: local looked, looked_at, phase, new, behind, mirrored, progress = unpack(ARGV, 4, 10) [one more] 2": NOTHING
    + "there is no eleventh argument.",
    "store/lua/extend.lua: local id, nonce, done = unpack(ARGV, FIRST + (i - 1) * STRIDE, FIRST + i * STRIDE - 1) [- to +] 2": NOTHING
    + "what is unpacked behind the third is not named.",
    'store/lua/include/alive.lua: local guarded = from and till and from < now and now < till -- "nan", too, lies nowhere'
    " [< to <=]": MARGIN + "a guard that begins in this very millisecond.",
    "store/lua/include/begin.lua: local colon = string.find(most, ':', 1, true) [true to false]": NOTHING + "a colon is no pattern.",
    "store/lua/include/begin.lua: return #text == 22 and not string.find(text, '%W') and text <= '7n42DGM5Tflk9n8mt7Fhc7'"
    " [<= to <]": MARGIN + "the id of 128 ones, which no clock makes.",
    "store/lua/include/finish.lua: noted = redis.call('EXISTS', k_cancels, k_progress) > 0 [> to >=]": COSTS
    + "two calls per job, on hashes that are not there.",
    "store/lua/restore.lua: local held = items > 0 and ARGV[FIRST + FENCE] ~= '' [+ to -]": NOTHING
    + "that is why the call was made, which it says of runs alone.",
    'store/queue.py: if statuses.count(b"created") == len(items) and holders == " ".join(shorts): # mostly: then no reply need be'
    " read by itself [== to !=] 2": COSTS + "each reply is read by itself.",
    "worker/process/executor.py: return max(0, finished_ms - run.started_ms) # the wall clock may be put back [one more]": MARGIN
    + "a run that took no millisecond has taken one.",
    "mirror/fold.py: job.worker, job.started_at, job.finished_at = rows.clean(entry.by, 200), at, None [one more]": MARGIN
    + "the name of a worker is shorter.",
    "worker/process/executor.py: delay = self._unknown_tasks.delay(run.job.id, run.job.unknown_ms / 1000) [one more]": MARGIN
    + "a thousandth of how long a task may be unknown.",
    'worker/process/executor.py: return ("fail", 0) if delay is None else ("retry", delay) [one more]': NOTHING
    + "who fails is not put off.",
    "worker/process/executor.py: stray_copies.end(error) [without stray_copies.end]": OPEN
    + "a task that forks and raises; tests/worker/test_rough.py has those that fork.",
    "worker/process/mover.py: self._buffer.call_at = -1 [one more]": NOTHING + "no buffer holds fewer than no jobs.",
    "worker/process/mover.py: watch.idle = not full and not reply.more [and to or]": OPEN
    + "how often a queue is asked; tests/worker/test_fair.py runs several.",
    "producer/put.py: if not alone: # else Redis has been asked, and has all that was written before [negated]": OPEN
    + "the order of two calls about one key in a transaction.",
}
