"""Faults that no test notices, each with the reason. A key is made in mutant.py, of file, text of the line and rule; one that no rule
makes any more fails the tests, and one that a test has come to notice fails the run.
"""

from __future__ import annotations

NOTHING = "It changes nothing: "
COSTS = "It changes only what it costs: "
MARGIN = "It moves a margin that nobody is promised: "
SCAN = COSTS + "about how many of a hash are looked at in a step."
OPEN = "No test within one process notices it yet: "
OTHERS = "Only the tests on this database notice it: "

SURVIVORS = {
    'producer/outbox/rows.py: elif vendor == "mysql" and connection.timezone_name != "UTC": [!= to ==]': OTHERS + "MariaDB.",
    'producer/outbox/rows.py: return {name: text.strip("\'") for name, text in (FAR if far else SAME).items() if text != "NULL"}'
    " [!= to ==]": OTHERS + "PostgreSQL.",
    "worker/process/mover.py: return seconds * (0.875 + self._rand() / 4) # otherwise all workers would always poll at the same time"
    " [one more]": MARGIN + "those who are to come late come a little sooner.",
    "store/lua/claim.lua: asked = false [false to true]": COSTS + "a look into an empty hash per job of this one claim.",
    "store/lua/claim.lua: local _, lease_end = unpack(redis.call('ZRANGE', k_leases, 0, 0, 'WITHSCORES')) [one more] 2": COSTS
    + "a lease that is not looked at.",
    "store/lua/confirm.lua: redis.pcall('XADD', k_events, int(ms) .. '-' .. int(number + 1), 'at', int(now), 'by', by)"
    " [one more]": NOTHING + "any id behind serves.",
    "store/lua/extend.lua: elseif pulled and tonumber(redis.call('ZSCORE', k_leases, id) or 0) % 1 ~= 0 then [one more]": NOTHING
    + "any whole number says that it is not lost.",
    "store/lua/extend.lua: alive(pulled or lease, 0, false, pulled, values_of(k_meta, 'alive', 'guard_from', 'guard_until', "
    "'guard_since', 'guard_next')) [one more]": MARGIN + "calls of who extends have failed for a millisecond.",
    "store/lua/include/alive.lua: if till and till > now + lease then "
    "-- further ahead than possible: it must not delay takeovers forever [> to >=]": COSTS + "what stands there is written again.",
    "store/lua/include/alive.lua: local gap = last and math.max(0, now - last) or 0 [one more]": MARGIN + "a gap, by a millisecond.",
    "store/lua/include/alive.lua: local gap = last and math.max(0, now - last) or 0 [one more] 2": MARGIN + "a gap, by a millisecond.",
    "store/lua/include/alive.lua: local guarded = from and till and from < now and (silent and last + breath or now) < till"
    " [< to <=]": MARGIN + "a guard that begins in this very millisecond.",
    "store/lua/include/alive.lua: from, till, up, kept = begun, 0, now, begun [one more]": NOTHING + "any end is later.",
    "store/lua/include/begin.lua: local ms = us / 1000 [one more]": MARGIN + "less than a millisecond of the clock.",
    "store/lua/include/begin.lua: local ms = us / 1000 [one less]": MARGIN + "less than a millisecond of the clock.",
    "store/lua/include/begin.lua: local texts = {[0] = '0', '1'} -- of whole numbers, see `int` [one more]": COSTS
    + "0 is written anew.",
    'store/lua/include/begin.lua: if number == number then -- an invalid time can be "nan" [== to ~=]': COSTS
    + "each number is written anew.",
    "store/lua/include/finish.lua: if redis.call('ZCARD', k_finished) <= TOMBSTONES then [<= to <]": COSTS
    + "a look at how many the database has heard of.",
    "store/lua/include/begin.lua: return #text == 22 and not string.find(text, '%W') and text <= '7n42DGM5Tflk9n8mt7Fhc7'"
    " [<= to <]": MARGIN + "the id of 128 ones, which no clock makes.",
    "store/lua/include/finish.lua: noted = redis.call('EXISTS', k_cancels, k_progress) > 0 [> to >=]": COSTS
    + "two calls per job, on hashes that are not there.",
    "store/lua/include/timer_election.lua: local date = tonumber(redis.call('ZRANGE', BANDS[letter], 0, 0, 'WITHSCORES')[2])"
    " [one more] 2": COSTS + "a date that is not looked at.",
    "store/lua/include/timer_election.lua: owner_until, backup_until, others_until = tonumber(owner_until) or 0,"
    " tonumber(backup_until) or 0, tonumber(others_until) or 0 [one more]": NOTHING + "no moment is so early.",
    "store/lua/include/timer_election.lua: owner_until, backup_until, others_until = tonumber(owner_until) or 0,"
    " tonumber(backup_until) or 0, tonumber(others_until) or 0 [one more] 2": NOTHING + "no moment is so early.",
    "store/lua/include/timer_election.lua: owner_until, backup_until, others_until = tonumber(owner_until) or 0,"
    " tonumber(backup_until) or 0, tonumber(others_until) or 0 [one more] 3": NOTHING + "no moment is so early.",
    "store/lua/include/wake.lua: waiting = 0 [one more]": NOTHING + "that is fewer than four, too.",
    "store/lua/schedule.lua: local items = (#ARGV - FIRST + 1) / STRIDE [one more]": NOTHING
    + "a call without jobs goes on, and does nothing.",
    "store/lua/schedule.lua: local keyed = false [false to true]": COSTS + "functions that no key needs.",
    "store/lua/include/schedule_fast_path.lua: if not line or string.sub(record, 1, #line) ~= line then [one more]": COSTS
    + "each header is read anew.",
    "store/lua/include/schedule_fast_path.lua: if dates.n > 1 then [one more]": NOTHING + "a date comes with its id.",
    "store/lua/include/schedule_fast_path.lua: until true [true to false]": NOTHING + "a block that is left before, either way.",
    "store/lua/include/schedule_fast_path.lua: if items > 1 then -- otherwise the tables are not needed [> to >=]": COSTS
    + "tables for a single job.",
    "store/lua/include/schedule_fast_path.lua: or (format and format ~= '1' and not (string.find(format, '^[2-9]$') and "
    "tonumber(format) <= FORMAT)) [<= to <]": NOTHING + "there is one format, and a one is compared before.",
    "store/lua/include/schedule_fast_path.lua: fresh = rolled ~= 'sweep' or asks [or to and]": COSTS
    + "these jobs take the path of all others.",
    "store/lua/include/schedule_fast_path.lua: surplus = tonumber(surplus or 0) [one more]": COSTS
    + "the last call before the limit goes on below.",
    "store/lua/sweep.lua: cursor, found = unpack(redis.call('HSCAN', k_jobs, cursor, 'COUNT', 200)) [one less]": SCAN,
    "store/lua/sweep.lua: cursor, found = unpack(redis.call('HSCAN', k_jobs, cursor, 'COUNT', 200)) [one more]": SCAN,
    "store/lua/tidy.lua: local _, requests = unpack(redis.call('HSCAN', k_cancels, '0', 'COUNT', 200)) [one less]": SCAN,
    "store/lua/tidy.lua: local _, requests = unpack(redis.call('HSCAN', k_cancels, '0', 'COUNT', 200)) [one more]": SCAN,
    "store/lua/tidy.lua: local after, counts = unpack(redis.call('HSCAN', k_stats, cursor, 'COUNT', 200)) [one less]": SCAN,
    "store/lua/tidy.lua: local after, counts = unpack(redis.call('HSCAN', k_stats, cursor, 'COUNT', 200)) [one more]": SCAN,
    "store/lua/tidy.lua: local after, claims = unpack(redis.call('HSCAN', k_claims, string.sub(cursor, 2), 'COUNT', 200))"
    " [one less]": SCAN,
    "store/lua/tidy.lua: local after, claims = unpack(redis.call('HSCAN', k_claims, string.sub(cursor, 2), 'COUNT', 200))"
    " [one more] 2": SCAN,
    "store/lua/tidy.lua: local after, told = unpack(redis.call('HSCAN', hash, string.sub(cursor, 2), 'COUNT', 200)) [one less]": SCAN,
    "store/lua/tidy.lua: local after, told = unpack(redis.call('HSCAN', hash, string.sub(cursor, 2), 'COUNT', 200)) [one more] 2": SCAN,
    "store/lua/tidy.lua: naming = #holders < 200 and 'b0' or 'h' .. int(from + stay) "
    "-- removing entries has moved the others up [one less]": COSTS + "one that stays is looked at twice.",
    "store/lua/include/lines.lua: local MOST_DROPPED = 1000 [one more]": COSTS + "how many one call drops.",
    "store/lua/include/lines.lua: local MOST_DROPPED = 1000 [one less]": COSTS + "how many one call drops.",
    "store/lua/include/lines.lua: seen, most_read = seen + #found, 200 [one more]": COSTS + "how many are read at once.",
    "store/lua/include/lines.lua: seen, most_read = seen + #found, 200 [one less]": COSTS + "how many are read at once.",
    "store/lua/include/lines.lua: for i = 1, #ids do [one more]": COSTS + "the first name is looked up alone.",
    "store/lua/include/lines.lua: if most <= (full[name] or 0) then [<= to <]": COSTS + "a name that is full is looked at again.",
    "store/lua/include/lines.lua: values[id] = false [false to true]": NOTHING
    + "nobody asks for the name of a job whose record has just gone.",
    "store/lua/include/position.lua: return tonumber(ms or 0), tonumber(number or 0) [one more]": NOTHING + "no event is so early.",
    "store/lua/include/position.lua: return tonumber(ms or 0), tonumber(number or 0) [one more] 2": NOTHING + "no event is so early.",
    "store/lua/lock.lua: local last = tonumber(string.match(redis.call('HGET', k_meta, 'fence') or '', '^%d+$')) or 0"
    " [one more]": NOTHING + "the clock is further.",
    "store/lua/unlock.lua: redis.call('HDEL', k_meta, '_') -- a first write that needs no memory,"
    " so that locks are given back at maxmemory [without redis.call HDEL]": OPEN + "a server without memory.",
    "store/lua/include/lines.lua: last = #last < 17 and tonumber(string.match(last, '^%d+$')) or 0 "
    "-- otherwise the value is invalid [one more] 2": NOTHING + "the clock is further.",
    "store/lua/lock.lua: if waits > 0 then [one more]": NOTHING + "who waits says two thousand.",
    "store/lua/pause.lua: return 1 [one more]": NOTHING + "whoever asks hears yes.",
    "store/lua/restore.lua: local held = (ARGV[FIRST + FENCE] or '') ~= '' [+ to -]": NOTHING
    + "that is why the call was made, which it says of runs alone.",
    "mirror/fold.py: job.worker, job.started_at, job.finished_at = rows.clean(entry.by, 200), at, None [one more]": MARGIN
    + "the name of a worker is shorter.",
    "worker/process/executor.py: delay = self._parked.delay(run.job.id, run.job.unknown_ms / 1000) [one more]": MARGIN
    + "a thousandth of how long a task may be unknown.",
    "worker/process/executor.py: delay = self._parked.delay(run.job.id, run.job.unknown_ms / 1000) [one less]": MARGIN
    + "a thousandth of how long a task may be unknown.",
    "worker/process/executor.py: if run.started < self._leases.good_until(run.row, run.turn): [< to <=]": MARGIN
    + "a lease that ends in this very moment.",
    'worker/outcome.py: return _made((job.id, job.attempt, job.fence, "ack", 0, detail, finished_ms - started_ms, '
    "run.late_ms, None, note)) [one more]": NOTHING + "a job that succeeded gets no delay.",
    'worker/outcome.py: kind, delay = "cancel", 0 [one more]': NOTHING + "a cancelled job gets no delay.",
    'worker/outcome.py: return "cancel", 0 [one more]': NOTHING + "a cancelled job gets no delay.",
    'worker/outcome.py: return "fail", 0 [one more]': NOTHING + "a failed job gets no delay.",
    'worker/outcome.py: return ("fail", 0) if wait is None else ("ask", wait) [one more]': NOTHING
    + "a job that gives up gets no delay.",
    "worker/process/executor.py: task_call.end_fork(None) # here, so that a fork does not commit the transaction of an atomic run"
    " [without task_call.end_fork]": OPEN + "a task that forks; tests/worker/test_crashes.py has those that fork.",
    'worker/outcome.py: return ("fail", 0) if delay is None else ("retry", delay) [one more]': NOTHING + "a failed job gets no delay.",
    "worker/process/executor.py: task_call.end_fork(error) [without task_call.end_fork]": OPEN
    + "a task that forks and raises; tests/worker/test_crashes.py has those that fork.",
    "worker/process/mover.py: least = max(1, min(ahead // 2, len(self._free), MOST)) [one more] 2": COSTS
    + "from how many free rows on a process claims more jobs.",
    "worker/process/mover.py: self._buffer.call_at = -1 [one more]": NOTHING + "no buffer holds fewer than no jobs.",
    "worker/process/mover.py: return min(self._idle_threads() + ahead, len(self._free) - self._spare, MOST) [- to +]": OPEN
    + "what a mover leaves to those of other servers; tests/worker/test_places.py has two.",
    "worker/process/mover.py: watch.idle = not full and not reply.more [and to or]": OPEN
    + "how often a queue is asked; tests/worker/test_fair.py runs several.",
    "producer/outbox/rows.py: task=clean(record.task, 200), [one more]": NOTHING + "no name of a task is longer.",
    "producer/outbox/rows.py: key=clean(bare(record.key), 200), [one more]": NOTHING + "no key is longer.",
    'producer/outbox/rows.py: return payload.startswith(b"[[") and payload.endswith(b"]]") and payload.isascii() [returns None]': COSTS
    + "each payload is read and written once more.",
    "mirror/fold.py: if position(job.last_event) < position(entry.id): [< to <=]": OPEN + "the last entry, folded once more alone.",
    "mirror/fold.py: return run.finished_at is not None [returns None]": OPEN + "the end of a run that its row has passed, told again.",
    'mirror/fold.py: if self.audit == "full" or kind not in LAST_ENDS: [or to and]': OPEN
    + "an end told again, of a run that has no Attempt row.",
}
