"""Faults in what brings jobs back that Redis has lost, and in when workers wait for it."""

from __future__ import annotations

from tests.model.mutant import Mutant


def lua(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"store/lua/{file}.lua", old, new, "ground")


def store(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"store/{file}.py", old, new, "ground")


RESTORE = [
    lua(
        "what has a tombstone rises again",
        "restore",
        "ended[i] or failed[i]",
        "failed[i]",
    ),
    lua("a job that has succeeded rises again", "restore", "over and not succeeded and rolled", "over and rolled"),
    lua("a failed job is restored", "restore", "ended[i] or failed[i]", "ended[i]"),
    lua(
        "a run that another claim holds is adopted",
        "restore",
        "if here and (c > crashes or",
        "if false and (c > crashes or",
    ),
    lua("a run that has ended is adopted", "restore", "(a == attempt and not (held ~= '' and c < crashes))", "false"),
    lua("a run is adopted where nothing was lost", "restore", "if claimed == ground then", "if false then"),
    lua(
        "an adopted run gets another fence",
        "restore",
        "  run(id, attempt, crashes, lane, fence, date)\n  tell",
        "  run(id, attempt, crashes, lane, held ~= '' and held or fence, date)\n  tell",
    ),
    lua(
        "an adopted run stays in its lane",
        "restore",
        "  gather('ZREM', LANES[lane], id)\n  gather('HSET', k_runs",
        "  gather('HSET', k_runs",
    ),
    lua(
        "an adopted run takes the key of another",
        "restore",
        "  if other and other ~= id then\n    return other\n  end\n",
        "",
    ),
    lua("adoption is not told", "restore", "  tell(id, date, attempt, crashes, fence, ", "  local _ = ("),
    lua(
        "correct takes the older attempt",
        "restore",
        "elseif a > attempt or (a == attempt and",
        "elseif (a == attempt and",
    ),
    lua("correct takes a later run away", "restore", "    if a > attempt then\n", "    if false then\n"),
    lua("correct takes what is right away", "restore", "and c >= crashes and tonumber", "and false and tonumber"),
    lua("correct leaves the lease", "restore", "  unlease(id)\n  wait(", "  wait("),
    lua(
        "correct forgives crashes",
        "restore",
        "  wait(id, attempt, math.max(c, crashes), lane, date)",
        "  wait(id, attempt, crashes, lane, date)",
    ),
    lua("rows count though nothing was rolled back", "restore", "return rolled and correct(", "return correct("),
    lua(
        "finished rows count though nothing was rolled back",
        "restore",
        "return here and rolled and drop(",
        "return here and drop(",
    ),
    lua("a dropped job keeps its key", "restore", "finish(id, key or '', how)", "finish(id, '', how)"),
    lua(
        "a dropped job leaves no tombstone",
        "restore",
        "  finish(id, key or '', how)\n",
        "  release(id, key or '')\n  gather('HDEL', k_jobs, id)\n  gather('HDEL', k_runs, id)\n",
    ),
    lua("a dropped job keeps its date", "restore", "  gather('ZREM', LANES[lane or 'n'], id)\n", ""),
    lua(
        "a dropped job keeps its lease",
        "restore",
        "  unlease(id)\n  gather('ZREM', LANES[lane or",
        "  gather('ZREM', LANES[lane or",
    ),
    lua("a drop is not told", "restore", "  event('dropped', id)\n", ""),
    lua("a cancelled row leaves another tombstone", "restore", "cancelled = true}", "cancelled = 'succeeded'}"),
    lua(
        "a row that was merged leaves no tombstone",
        "restore",
        "    gather('ZADD', k_finished, tombstone(true), id)\n",
        "",
    ),
    lua("a row comes back without its key", "restore", "  local other = take_key(id, key)\n", "  local other = ''\n"),
    lua(
        "a row comes back without its attempts",
        "restore",
        "  wait(id, attempt, crashes, lane, date)\n  tell",
        "  wait(id, 0, crashes, lane, date)\n  tell",
    ),
    lua(
        "a row comes back without its crashes",
        "restore",
        "  wait(id, attempt, crashes, lane, date)\n  tell",
        "  wait(id, attempt, 0, lane, date)\n  tell",
    ),
    lua(
        "a row comes back at once",
        "restore",
        "math.max(tonumber(ARGV[at + 5]), now + tonumber(ARGV[at + 6]))",
        "tonumber(ARGV[at + 5])",
    ),
    lua("a restore does not wait for another", "restore", "math.abs(now - tonumber(at)) < 5000", "false"),
    lua(
        "a dead restore stands in the way",
        "restore",
        "math.abs(now - tonumber(at)) < 5000",
        "math.abs(now - tonumber(at)) < 5001",
    ),
]
WAITING = [
    lua("a requeue that was forgotten stays forgotten", "restore", "ARGV[at + 7] == '1'", "false"),
    lua("an end is undone by any row", "restore", "ARGV[at + 7] == '1'", "true"),
    lua("a queue that was rolled back is served", "claim", "if meta[12] or (here", "if (here"),
    lua("another server is served", "claim", "(here ~= '' and meta[7] and meta[7] ~= here)", "false"),
    lua("nobody to confirm is waited for in vain", "claim", "waited <= PATIENCE", "true"),
    lua(
        "who works on it no more corrects still",
        "restore",
        "(ARGV[6] == 'noted' and redis.call('HGET', k_meta, 'rolled'))",
        "ARGV[6] == 'noted'",
    ),
    lua(
        "a restore at work is not waited for",
        "claim",
        "math.min(math.abs(now - since), math.abs(now - worked))",
        "math.abs(now - since)",
    ),
    lua("a queue without a mirror waits", "claim", "and meta[7] and meta[7] ~= here", "and meta[7] ~= here"),
]
CONFIRM = [
    lua(
        "another generation is confirmed",
        "confirm",
        "(redis.call('HGET', k_meta, 'generation') or '') ~= looked",
        "false",
    ),
    lua("another server is confirmed", "confirm", "(ARGV[8] ~= '' and ARGV[8] ~= server())", "false"),
    lua("what was rolled back stays so", "confirm", "k_meta, 'rolled', 'restoring',", "k_meta, 'restoring',"),
    lua("what was rolled back keeps its generation", "confirm", "'generation', new, 'rolled', '1',", "'rolled', '1',"),
    lua("new events stand before old ones", "confirm", "if behind ~= '' then", "if false then"),
    lua("the server is not noted", "confirm", "  redis.call('HSET', k_meta, 'server', server())\n", ""),
    lua(
        "a slower mirror counts",
        "include/position",
        "  if further(id, redis.call('HGET', k_meta, 'mirrored') or '') then",
        "  if true then",
    ),
]
TRIM = [
    lua("trim believes another server", "trim", "if ARGV[5] ~= '' and ARGV[5] ~= server() then", "if false then"),
    lua("trim goes beyond what is folded", "trim", "int(ms) .. '-' .. int(number + 1)", "int(ms + 1) .. '-0'"),
    lua("trim leaves what is folded", "trim", "int(number + 1)", "int(number)"),
    lua("trim notes nothing", "trim", "note_mirrored(ARGV[4])\n", ""),
]
SIDE = [
    store("the ground of a run is not sent", "ground", 'ground or "?", "", "", now_ms', '"?", "", "", now_ms'),
    store("that it was rolled back is not sent", "ground", '"1" if rolled else ""', '""'),
    store(
        "the delay of a row is not sent",
        "ground",
        "(item.due_ms, item.delay_ms,",
        "(item.due_ms, 0,",
    ),
    store("the server is not sent", "ground", "renew, behind, mirrored, server)", 'renew, behind, mirrored, "")'),
    store("what is wiped twice looks the same", "queue", "return os.urandom(8).hex()", 'return "once"'),
]
ALL = [*RESTORE, *WAITING, *CONFIRM, *TRIM, *SIDE]
