"""Faults put in on purpose, each of which the tests must notice. `old` stands exactly once in its file, so none can rot.

Those of the scripts (`where="lua"`) and of their Python side (`"store"`) are given to the machine, those of restore (`"ground"`) to the
one on shaky ground; those of the worker
(`"worker"`) to the test of tests/worker/test_loops.py that is named with them. A campaign may use them all.
"""

from __future__ import annotations

from tests.model import ground_mutants
from tests.model.mutant import Mutant
from tests.model.python_mutants import STORE, WORKER


def lua(name: str, file: str, old: str, new: str, test: str = "") -> Mutant:
    return Mutant(name, f"store/lua/{file}.lua", old, new, "lua", test)


ASKED = "test_tidy_drops_what_was_asked_of_a_job_that_nobody_runs_and_nothing_else"

SCHEDULE = [
    lua("a re-send overwrites", "schedule", "  if known then\n", "  if false then\n"),
    lua("tombstones are ignored", "schedule", "  elseif ended then\n", "  elseif false then\n"),
    lua(
        "a failed job counts as live",
        "schedule",
        "k_failed, id) and 'failed' or 'again'",
        "k_failed, id) and 'again' or 'again'",
    ),
    lua("a date of now is told of a job that ran before", "schedule", "redis.call('HEXISTS', k_runs, id) == 0 and", ""),
    lua(
        "replace takes a running job",
        "schedule",
        "  elseif not date then\n",
        "  elseif not date and policy ~= 'replace' then\n",
    ),
    lua("error keeps", "schedule", "elseif policy == 'error' then", "elseif policy == '' then"),
    lua("earliest moves later", "schedule", "due < date", "due > date + 1"),
    lua("latest moves always", "schedule", "(policy == 'latest' and due > date)", "policy == 'latest'"),
    lua(
        "the key is not taken",
        "schedule",
        "      if key ~= '' then\n        write('HSET', k_keys",
        "      if false then\n        write('HSET', k_keys",
    ),
    lua(
        "a merged job leaves no tombstone",
        "schedule",
        "      write('ZADD', k_finished, tombstone('displaced'), id)\n",
        "",
    ),
    lua(
        "a merged job is cancelled",
        "schedule",
        "write('ZADD', k_finished, tombstone('displaced')",
        "write('ZADD', k_finished, tombstone('cancelled')",
    ),
    lua("a job twice in a call is two", "schedule", "key ~= '' or seen[id]", "key ~= ''"),
    lua("a key twice in a call is two", "schedule", "key ~= '' or seen[id]", "seen[id]"),
    lua("an early look is believed", "schedule", "  if not together then\n    known", "  if false then\n    known"),
    lua(
        "a replaced job leaves no tombstone",
        "schedule",
        "  redis.call('ZADD', k_finished, tombstone('displaced'), id)\n",
        "",
    ),
    lua(
        "a replaced job is cancelled",
        "schedule",
        "call('ZADD', k_finished, tombstone('displaced'), id)",
        "call('ZADD', k_finished, tombstone('cancelled'), id)",
    ),
    lua("a replaced job does not say by which", "schedule", '","r":"\' .. by .. \'"}\'', "\"}'"),
    lua("a replaced job keeps its record", "schedule", "  redis.call('HDEL', k_jobs, holder)\n", ""),
    lua("the event has no record", "schedule", "durable and fields or (fields .. '\\n' .. record)", "fields"),
    lua("late is as good as first", "schedule", "if own and named ~= holder then", "if false then"),
    lua("late on another holder", "schedule", "if own and named ~= holder then", "if own and named == '' then"),
    lua("late never", "schedule", "if own and named ~= holder then", "if own then"),
    lua("other ground is ignored", "schedule", "(known_ground ~= '' and known_ground ~= ground)", "false"),
    lua(
        "a first ground is refused",
        "schedule",
        "(known_ground ~= '' and known_ground ~= ground)",
        "(known_ground ~= ground)",
    ),
    lua(
        "who holds a key is not asked",
        "schedule",
        "return not confirmed or rolled or confirmed ~= here",
        "return false",
    ),
    lua("a wiped store knows all keys", "schedule", "return not confirmed or", "return confirmed and"),
    lua("another server is believed", "schedule", " or confirmed ~= here", ""),
    lua("who holds a key is asked for ever", "schedule", "if told or (other", "if (other"),
    lua("what came after a wipe is asked about", "schedule", "(other and not confirmed)", "false"),
    lua("to ask puts it in", "schedule", "if asks then\n      status", "if false then\n      status"),
    lua("to ask replaces", "schedule", "if asks then\n      return\n", "if false then\n      return\n"),
    lua("to ask moves", "schedule", "if not asks then\n        redis", "if true then\n        redis"),
    lua(
        "a holder that has expired holds",
        "schedule",
        "if date and expires > 0 and expires <= now then",
        "if false then",
    ),
    lua("a holder is moved behind its expiry", "schedule", "(moves and expires > 0 and expires <= due)", "false"),
    lua(
        "a holder that ran is forgotten when it expires", "schedule", "if not id and (attempt", "if false and (attempt"
    ),
    lua("what has been replaced comes in", "schedule", "string.sub(policy, 1, 9) == 'replaced@'", "false"),
    lua("contested is merged", "schedule", "elseif status ~= 'contested' and", "elseif"),
    lua("behind is merged", "schedule", "status ~= 'behind' and ", ""),
    lua("asked is merged", "schedule", " and status ~= 'asked' then", " then"),
    lua("after replaces what has begun", "schedule", " or redis.call('HEXISTS', k_runs, holder) == 1)", ")"),
    lua("after runs beside", "schedule", "policy == 'after' and (not date or", "policy == 'after' and (false and"),
    lua("after takes the later date", "schedule", "date < due and date or due", "date > due and date or due"),
    lua("replace keeps the earlier date", "schedule", "'free', policy == 'after' and date", "'free', date"),
    lua("a merge is told with its holder", "schedule", "(string.match(policy, '^%l+'))", "policy"),
    lua(
        "how it has ended is not told",
        "schedule",
        "status, date = end_of(ended), '0'",
        "status, date = 'finished', '0'",
    ),
]
CLAIM = [
    lua("a claim is not idempotent", "claim", "string.match(last, '^(%S+)') == nonce", "false"),
    lua(
        "a re-sent claim gives what was lost", "claim", "if held == nonce and record then", "if record and attempt then"
    ),
    lua(
        "a re-sent claim gives nothing when paused",
        "claim",
        "local last = redis.call('HGET', k_claims, worker)",
        "local last = not paused and redis.call('HGET', k_claims, worker)",
    ),
    lua("the claim is not remembered", "claim", "if claimed > 0 then", "if claimed > 1 then"),
    lua("the pause is ignored", "claim", "if paused then\n  return head", "if false then\n  return head"),
    lua("another generation is served", "claim", "expected ~= '' and expected ~= generation .. ':' .. here", "false"),
    lua("the attempt is not counted", "claim", "(attempt or 0) + 1", "(attempt or 1)"),
    lua("a takeover counts an attempt", "claim", "attempt + (unowned and 1 or 0)", "attempt + 1"),
    lua("a takeover counts no crash", "claim", "crashes + (unowned and 0 or 1)", "crashes"),
    lua(
        "a takeover forgives a crash",
        "claim",
        "crash(id, attempt, crashes, unowned",
        "crash(id, attempt, crashes - 1, unowned",
    ),
    lua(
        "due a millisecond early",
        "claim",
        "lane, '-inf', int(now), 'WITHSCORES'",
        "lane, '-inf', int(now + 1), 'WITHSCORES'",
    ),
    lua(
        "due a second early",
        "claim",
        "lane, '-inf', int(now), 'WITHSCORES'",
        "lane, '-inf', int(now + 1000), 'WITHSCORES'",
    ),
    lua(
        "newest first",
        "claim",
        "redis.call('ZRANGEBYSCORE', lane, '-inf', int(now), 'W",
        "redis.call('ZREVRANGEBYSCORE', lane, int(now), '-inf', 'W",
    ),
    lua("low before high", "claim", "{'h', 'n', 'l'}", "{'l', 'n', 'h'}"),
    lua("more than wanted", "claim", "local room = want - handled", "local room = want"),
    lua("a claimed job stays in its lane", "claim", "    gather('ZREMRANGEBYRANK', lane, 0, #ids - 1)", ""),
    lua("an expired job runs", "claim", "      elseif expires > 0 and expires <= now then", "      elseif false then"),
    lua("a job that has run expires unseen", "claim", "if attempt + crashes == 0 then", "if true then"),
    lua(
        "a claim forgets the past",
        "claim",
        "run_value(attempt, crashes, lane, nonce, past)",
        "run_value(attempt, crashes, lane, nonce, '')",
    ),
    lua("an expired job is taken over", "claim", "      if expires > 0 and expires <= now then", "      if false then"),
    lua("a lease ends a millisecond early", "claim", "'(' .. int(takeover)", "int(takeover)"),
    lua("a lease ends a second early", "claim", "'(' .. int(takeover)", "'(' .. int(takeover + 1000)"),
    lua("a takeover forgets a cancel request", "claim", "redis.call('HEXISTS', k_cancels, id) == 1", "false"),
    lua(
        "a takeover keeps the progress",
        "claim",
        "        gather('HDEL', k_progress, id)\n        take(",
        "        take(",
    ),
    lua(
        "a takeover is not told", "claim", "      event('crashed', id .. ' '", "      local _ = ('crashed' .. id .. ' '"
    ),
    lua("the outage guard is ignored", "claim", "local takeover = alive(", "local takeover = now, alive("),
]
SETTLE = [
    lua("settle takes a stale fence", "settle", "held ~= nonce or attempt ~= number", "attempt ~= number"),
    lua("settle takes a wrong attempt", "settle", "held ~= nonce or attempt ~= number", "held ~= nonce"),
    lua("settled twice in a batch", "settle", "if settled[id] then", "if false then"),
    lua("an ended run is lost", "settle", "elseif not attempt or held == '' then", "elseif not attempt then"),
    lua("a cancel request is forgotten", "settle", "cancels[i] and (outcome == 'retry' or BACK[outcome])", "false"),
    lua(
        "a cancel request undoes a success",
        "settle",
        "(outcome == 'retry' or BACK[outcome])",
        "(outcome ~= 'crash')",
    ),
    lua("an eviction is not noted", "settle", "tonumber(evictions) or 0) + 1", "tonumber(evictions) or 0)"),
    lua("a job is parked anew each time", "settle", "elseif unknown == '' then", "else"),
    lua("a past is written before its time", "settle", "'') or 0) >= 1", "'') or 0) >= 0"),
    lua("a run that ended by itself keeps its past", "settle", "elseif delay > 0 then", "elseif false then"),
    lua("a run that was given back loses its past", "settle", "elseif delay > 0 then", "else"),
    lua("ack keeps the lease", "settle", "if kind == 'ack' then\n      unlease(id)\n", "if kind == 'ack' then\n"),
    lua("ack keeps the key", "settle", "finish(id, key_of(id, lane), 'succeeded')", "finish(id, '', 'succeeded')"),
    lua("ack is not told", "settle", "      event('succeeded', fields .. '\\n' .. detail)\n", ""),
    lua(
        "a cancelled run keeps its key",
        "settle",
        "finish(id, key_of(id, lane), 'cancelled')",
        "finish(id, '', 'cancelled')",
    ),
    lua("a failed job keeps its key", "settle", "      release(id, key_of(id, lane))\n", ""),
    lua(
        "a failed job keeps its run",
        "settle",
        "      gather('HDEL', k_runs, id)\n      gather('ZADD', k_failed",
        "      gather('ZADD', k_failed",
    ),
    lua(
        "a retry does not count",
        "settle",
        "back(id, attempt, crashes, lane, now + delay, '')",
        "back(id, attempt - 1, crashes, lane, now + delay, '')",
    ),
    lua(
        "a snooze counts",
        "settle",
        "back(id, attempt - 1, crashes, lane, now + delay, past)",
        "back(id, attempt, crashes, lane, now + delay, past)",
    ),
    lua(
        "a crash counts an attempt",
        "settle",
        "back(id, attempt - 1, crashes + 1, lane, now, past)",
        "back(id, attempt, crashes + 1, lane, now, past)",
    ),
    lua(
        "a crash is forgiven",
        "settle",
        "back(id, attempt - 1, crashes + 1, lane, now, past)",
        "back(id, attempt - 1, crashes, lane, now, past)",
    ),
    lua(
        "a retry has no delay",
        "settle",
        "back(id, attempt, crashes, lane, now + delay, '')",
        "back(id, attempt, crashes, lane, now, past)",
    ),
    lua(
        "a job that goes back keeps its lease",
        "settle",
        "  unlease(id)\n  gather('ZADD', LANES[lane]",
        "  gather('ZADD', LANES[lane]",
    ),
    lua(
        "keys are looked for in the wrong jobs",
        "settle",
        "if lane ~= string.upper(lane) then",
        "if lane == string.upper(lane) then",
    ),
]
EXTEND = [
    lua(
        "extend takes a stale fence", "extend", "if nonce == '' or held ~= nonce then", "if not held or held == '' then"
    ),
    lua(
        "what was lost is extended",
        "extend",
        "    reply[i] = held and held ~= '' and 'lost' or gone\n",
        "    reply[i] = 'lost'\n    extended[#extended + 1] = int(now + lease)\n    extended[#extended + 1] = id\n",
    ),
    lua("a cancel request is not passed on", "extend", "cancels[i] and 'cancel' or 'ok'", "'ok'"),
    lua(
        "extend shortens",
        "extend",
        "extended[#extended + 1] = int(now + lease)",
        "extended[#extended + 1] = int(now + lease / 2)",
    ),
    lua("extend is no sign of life", "extend", "\nalive(lease, 0)\n", "\n"),
]
PIECES = [
    lua("poison runs for ever", "include/crash", "if crashes > max_crashes then", "if false then"),
    lua("poison one crash early", "include/crash", "if crashes > max_crashes then", "if crashes >= max_crashes then"),
    lua("poison keeps its key", "include/crash", "    release(id, key)\n", ""),
    lua("poison keeps its lease", "include/crash", "    unlease(id)\n    release(id, key)", "    release(id, key)"),
    lua("no tombstone at the end", "include/finish", "  gather('ZADD', k_finished, tombstone(how), id)\n", ""),
    lua("the record stays", "include/finish", "  gather('HDEL', k_jobs, id)\n", ""),
    lua("the run stays", "include/finish", "  gather('HDEL', k_runs, id)\n", ""),
    lua("the cancel request stays", "include/finish", "  gather('HDEL', k_cancels, id)\n", ""),
    lua("the progress stays", "include/finish", "  gather('HDEL', k_progress, id)\n", ""),
    lua(
        "a tombstone does not say cancelled",
        "include/tombstone",
        "cancelled = '.5'",
        "cancelled = ''",
    ),
    lua("an outage is never seen", "include/alive", "if away > lease / 2 or", "if away > lease * 200 or"),
    lua("a server that was started anew goes unseen", "claim", "moved and run)", "false)"),
    lua("a worker is not noted on its server", "claim", "  redis.call('HSET', k_meta, 'run', here)\n", ""),
    lua("silence holds nothing up", "include/alive", "elseif silent and not guarded then", "elseif false then"),
    lua("silence is taken for an outage", "include/alive", "now + math.min(BREATH, lease / 2)", "now + lease"),
    lua(
        "silence begins anew with each call",
        "include/alive",
        "elseif silent and not guarded then",
        "elseif silent then",
    ),
    lua(
        "a guard that lies ahead takes all",
        "include/alive",
        "from < now and now < till",
        "now < till",
    ),
    lua(
        "a clock that was put back is not believed", "include/alive", "if now ~= last then", "if now > (last or 0) then"
    ),
    lua("the guard forgets its start", "include/alive", "guarded and from or now)", "now)"),
    lua("outages make leases good for ever", "include/alive", " - 2 * lease), now", " - 200 * lease), now"),
    lua(
        "the last write is forgotten",
        "include/bulk",
        "for i = 1, #pending_order do",
        "for i = 1, #pending_order - 1 do",
    ),
]
CHANGES = [
    lua(
        "cancel takes a running job",
        "cancel",
        "k_leases, id) then\n      status = request(id)\n",
        "k_leases, id) then\n      status = redis.call('ZREM', k_leases, id) and 'running'\n      redis.call('HDEL', k_jobs, id)\n",
    ),
    lua(
        "a cancelled job leaves no tombstone",
        "cancel",
        "      redis.call('HDEL', k_runs, id)\n      redis.call('ZADD', k_finished, tombstone('cancelled'), id)\n",
        "      redis.call('HDEL', k_runs, id)\n",
    ),
    lua("a cancelled job is displaced", "include/tombstone", "cancelled = '.5'", "cancelled = '.75'"),
    lua(
        "an unknown job is cancelled without a word",
        "cancel",
        "tombstone('cancelled'), id)\n      event('cancelled', id .. ' 0 0 -')\n    end",
        "tombstone('cancelled'), id)\n    end",
    ),
    lua("a second cancel is too late", "cancel", "how == 'cancelled' and 'done'", "false and 'done'"),
    lua(
        "a displaced job was cancelled",
        "cancel",
        "how == 'cancelled' and 'done'",
        "how ~= 'finished' and how ~= 'succeeded' and 'done'",
    ),
    lua("a row that has not heard never hears", "cancel", "if lacking ~= '' and (how", "if false and (how"),
    lua("everybody hears again", "cancel", "lacking ~= '' and (how", "(how"),
    lua("a lost run gets no request", "cancel", "lacking ~= '' and may_run(lacking)", "false"),
    lua("an earlier date is made later", "reschedule", "(policy == 'earliest' and date <= due) or", "false or"),
    lua("a later date is made earlier", "reschedule", "or (policy == 'latest' and date >= due)", ""),
    lua("what may run is moved", "reschedule", "lacking ~= '' and may_run(lacking)", "false"),
    lua(
        "what is due runs on any ground",
        "include/ground",
        "date <= now and (rolled or confirmed ~= server())",
        "date <= now",
    ),
    lua("what is not due may run", "include/ground", "date <= now and (rolled", "(rolled"),
    lua("claim does not look what was asked", "cancel", "redis.call('HSET', k_meta, 'asked', '1')", "local _ = 1"),
    lua("what was asked is run", "claim", "asked and redis.call('HDEL', k_cancels, id) == 1", "false"),
    lua("a cancel on the ground that answered", "cancel", "if unless == ground then", "if false then"),
    lua("a cancel does not tell its event", "cancel", "reply[2] = publish()", "publish()"),
    lua("a move on the ground that answered", "reschedule", "if unless == ground then", "if false then"),
    lua("a move does not tell its event", "reschedule", "reply[2] = publish()", "publish()"),
    lua("a cancelled job keeps its key", "cancel", "      release(id, key)\n", ""),
    lua("a cancelled job keeps its attempts", "cancel", "      redis.call('HDEL', k_runs, id)\n", ""),
    lua(
        "a second cancel request",
        "cancel",
        "redis.call('HSETNX', k_cancels, id, by) == 1",
        "redis.call('HSET', k_cancels, id, by) >= 0",
    ),
    lua("an unknown job can still be published", "cancel", "elseif waits then", "elseif false then"),
    lua(
        "a failed job is rescheduled",
        "reschedule",
        "elseif lane and redis.call('ZSCORE', LANES[lane], id) then",
        "elseif lane then",
    ),
    lua(
        "a running job is rescheduled",
        "reschedule",
        "k_leases, id) then\n    status = 'running'\n",
        "k_leases, id) then\n    status = 'running'\n    redis.call('ZADD', LANES[lane], int(due), id)\n",
    ),
    lua("a new date is not told", "reschedule", "      event('rescheduled', id", "      local _ = (id"),
    lua("requeue steals a key", "requeue", "key ~= '' and holder_of(key)", "false"),
    lua("requeue leaves the key", "requeue", "if key ~= '' then\n", "if false then\n"),
    lua("requeue leaves it among the failed", "requeue", "        redis.call('ZREM', k_failed, id)\n", ""),
    lua("requeue believes an old row", "requeue", "  elseif succeeded then\n", "  elseif false then\n"),
    lua("requeue leaves the tombstone", "requeue", "        redis.call('ZREM', k_finished, id)\n", ""),
    lua("requeue believes anybody", "requeue", "(vouched or cancelled)", "true"),
    lua(
        "requeue forgets the edit",
        "requeue",
        "given ~= '' and (vouched or cancelled) and given or kept",
        "kept or given",
    ),
    lua("a pause of a paused queue", "pause", "  if paused then\n    return 0", "  if false then\n    return 0"),
    lua(
        "a purged job keeps its key",
        "purge",
        "finish(ids[i], key or '', 'cancelled')",
        "finish(ids[i], '', 'cancelled')",
    ),
    lua("purge takes all", "purge", "redis.call('ZRANGE', lane, 0, room - 1)", "redis.call('ZRANGE', lane, 0, -1)"),
    lua(
        "tidy drops a job that has just failed",
        "tidy",
        "k_failed, '-inf', '(' .. failed_before",
        "k_failed, '-inf', '+inf'",
    ),
    lua("tidy leaves what was asked for nobody", "tidy", "if asked and not rolled and", "if false and", ASKED),
    lua(
        "tidy drops what was asked of a run",
        "tidy",
        "if redis.call('HEXISTS', k_jobs, id) == 0 then",
        "if true then",
        ASKED,
    ),
    lua("tidy drops what is asked on the way back", "tidy", "not rolled and confirmed == server()", "true", ASKED),
    lua("tidy drops young tombstones", "tidy", "int(now - tonumber(kept_ms))", "int(now)"),
    lua("tidy leaves no tombstone", "tidy", "    for i = 1, #failed do", "    for i = 2, #failed do"),
    lua("tidy drops a live claim", "tidy", "at < now - tonumber(claims_ms)", "at <= now"),
]
LUA = [*SCHEDULE, *CLAIM, *SETTLE, *EXTEND, *PIECES, *CHANGES]
GROUND = ground_mutants.ALL
ALL = [*LUA, *STORE, *GROUND, *WORKER]
# What the dice come upon after many steps, or not at all: these are looked for by command, since CI holds nothing that chance decides.
SELDOM = frozenset({
    "store/recovery.py: the ground of a run is not sent",
    "store/lua/cancel.lua: claim does not look what was asked",
    "store/lua/claim.lua: a row that runs counts a crash",
    "store/lua/claim.lua: a row that runs does not begin again",
    "store/lua/claim.lua: a takeover keeps the progress",
    "store/lua/claim.lua: a wiped store is served at once",
    "store/lua/claim.lua: what was asked is run",
    "store/lua/include/ground.lua: what is due runs on any ground",
    "store/lua/requeue.lua: requeue believes an old row",
    "store/lua/requeue.lua: requeue believes anybody",
    "store/lua/reschedule.lua: a failed job is rescheduled",
    "store/lua/reschedule.lua: a later date is made earlier",
    "store/lua/restore.lua: a row comes back without its attempts",
    "store/lua/restore.lua: a row comes back without its crashes",
    "store/lua/restore.lua: a run is adopted where nothing was lost",
    "store/lua/schedule.lua: a date of now is told of a job that ran before",
    "store/lua/schedule.lua: a holder is moved behind its expiry",
    "store/lua/schedule.lua: a holder that ran is forgotten when it expires",
    "store/lua/schedule.lua: a wiped store knows all keys",
    "store/lua/schedule.lua: after replaces what has begun",
    "store/lua/schedule.lua: another server is believed",
    "store/lua/schedule.lua: asked is merged",
    "store/lua/schedule.lua: to ask makes a generation",
    "store/lua/schedule.lua: to ask moves",
    "store/lua/settle.lua: a job is parked anew each time",
    "store/lua/sweep.lua: another generation is swept",
    "store/queue.py: everybody vouches",
})  # fmt: skip
