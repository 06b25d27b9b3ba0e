"""Faults in what brings jobs back that Redis has lost, and in when workers wait for it."""

from __future__ import annotations

from tests.model.mutant import Mutant


def lua(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"store/lua/{file}.lua", old, new, "ground")


def store(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, f"store/{file}.py", old, new, "ground")


RESTORE = [
    lua("what has a tombstone rises again", "restore", "if ended[i] or failed[i] then", "if failed[i] then"),
    lua("a failed job is restored", "restore", "if ended[i] or failed[i] then", "if ended[i] then"),
    lua(
        "a run that another claim holds is adopted",
        "restore",
        "elseif here and (c > crashes or",
        "elseif false and (c > crashes or",
    ),
    lua("a run that has ended is adopted", "restore", "(a == attempt and not (holder ~= '' and c < crashes))", "false"),
    lua("a run is adopted where nothing was lost", "restore", "elseif known == ground then", "elseif false then"),
    lua(
        "an adopted run gets another fence",
        "restore",
        ".. lane .. ':' .. fence)",
        ".. lane .. ':' .. (holder ~= '' and holder or fence))",
    ),
    lua("an adopted run stays in its lane", "restore", "  gather('ZREM', LANES[lane], id)\n", ""),
    lua(
        "an adopted run takes the key of another",
        "restore",
        "  if other and other ~= id then\n    return other\n  end\n",
        "",
    ),
    lua("adoption is not told", "restore", "  tell(id, date, attempt, crashes, fence, ", "  local _ = ("),
    lua(
        "a row that was merged leaves no tombstone",
        "restore",
        "    gather('ZADD', k_finished, tombstone('displaced'), id)\n",
        "",
    ),
    lua("a row that was merged is cancelled", "restore", "tombstone('displaced')", "tombstone('cancelled')"),
    lua("a row comes back without its key", "restore", "  local other = take_key(id, key)\n", "  local other = ''\n"),
    lua(
        "a row comes back without its attempts",
        "restore",
        "  if attempt > 0 or crashes > 0 or begun",
        "  if crashes > 0 or begun",
    ),
    lua(
        "a row comes back without its crashes",
        "restore",
        "int(crashes) .. ':' .. (key == ''",
        "'0:' .. (key == ''",
    ),
    lua("a row that runs waits for everybody", "restore", "begun ~= '' and k_leases or LANES[lane]", "LANES[lane]"),
    lua("a row that runs forgets that it was asked", "restore", "if begun == 'cancel' then", "if false then"),
    lua("a row that runs counts a crash", "claim", "crashes + (unowned and 0 or 1)", "crashes + 1"),
    lua("a row that runs does not begin again", "claim", "attempt + (unowned and 1 or 0)", "attempt"),
    lua("a row changes what is there", "restore", "records[i] and 'there' or bring_back", "bring_back"),
    lua(
        "a row comes back at once",
        "restore",
        "math.max(tonumber(due), now + tonumber(delay))",
        "tonumber(due)",
    ),
    lua("rows of other ground come back", "restore", "not held and known ~= ground", "false and known ~= ground"),
    lua("a run is adopted while all is swept", "restore", "elseif held and rolled == 'sweep' then", "elseif false then"),
]
SWEEP = [
    lua("another generation is swept", "sweep", "generation ~= swept", "false"),
    lua("what has come back is swept", "sweep", "phase ~= 'sweep'", "false"),
    lua("jobs of redis durability are swept", "sweep", "if durable then", "if lane then"),
    lua("a swept job keeps its key", "sweep", "  release(id, key)\n", ""),
    lua("a swept job keeps its lease", "sweep", "  unlease(id)\n", ""),
    lua("a swept job keeps its date", "sweep", "  gather('ZREM', LANES[lane], id)\n", ""),
    lua("a swept job has failed still", "sweep", "  gather('ZREM', k_failed, id)\n", ""),
    lua("a swept job keeps its attempts", "sweep", "  gather('HDEL', k_runs, id)\n", ""),
    lua("a drop is not told", "sweep", "      event('dropped', id)\n", ""),
    lua("what is swept is taken for lost", "extend", "and 'wait' or 'gone')", "and 'gone' or 'gone')"),
]
WAITING = [
    lua("to ask makes a generation", "schedule", "if not generation and not asks then", "if not generation then"),
    lua("a queue on its way back is served", "claim", "(rolled and rolled ~= 'rest')", "false"),
    lua("claims wait for the far rest", "claim", "(rolled and rolled ~= 'rest')", "rolled"),
    lua("another server is served", "claim", "(here ~= '' and believed ~= here)", "false"),
    lua("a wiped store is served at once", "claim", "(wary ~= '1' and here)", "here"),
    lua("a queue without a mirror waits", "claim", "(wary ~= '1' and here)", "nil"),
    lua("nobody to confirm is waited for in vain", "claim", "waited <= PATIENCE", "true"),
    lua(
        "a restore at work is not waited for",
        "claim",
        "math.min(math.abs(now - since), math.abs(now - worked))",
        "math.abs(now - since)",
    ),
]
CONFIRM = [
    lua("another generation is confirmed", "confirm", "(generation or '') ~= looked", "false"),
    lua("another server is confirmed", "confirm", "(looked_at ~= '' and looked_at ~= here)", "false"),
    lua(
        "the way back has no end",
        "confirm",
        "k_meta, 'rolled', 'restoring', 'moved_to'",
        "k_meta, 'restoring', 'moved_to'",
    ),
    lua("what was rolled back keeps its generation", "confirm", "  redis.call('HSET', k_meta, 'generation', new)\n", ""),
    lua("what was rolled back keeps its tombstones", "confirm", "    redis.call('UNLINK', k_finished)\n", ""),
    lua("a wiped store loses its tombstones", "confirm", "if phase == 'sweep' then", "if true then"),
    lua("new events stand before old ones", "confirm", "if behind ~= '' then", "if false then"),
    lua("the server is not noted", "confirm", "redis.call('HSET', k_meta, 'server', here)\n", ""),
    lua("a restore does not wait for another", "confirm", "math.abs(now - tonumber(at)) < 5000", "false"),
    lua(
        "a dead restore stands in the way",
        "confirm",
        "math.abs(now - tonumber(at)) < 5000",
        "math.abs(now - tonumber(at)) < 5001",
    ),
    lua(
        "a slower mirror counts",
        "include/position",
        "  if further(id, redis.call('HGET', k_meta, 'mirrored') or '') then",
        "  if true then",
    ),
]
TRIM = [
    lua("trim believes another server", "trim", "if read_from ~= '' and read_from ~= server() then", "if false then"),
    lua("trim goes beyond what is folded", "trim", "int(ms) .. '-' .. int(number + 1)", "int(ms + 1) .. '-0'"),
    lua("trim leaves what is folded", "trim", "int(number + 1)", "int(number)"),
    lua("trim notes nothing", "trim", "note_mirrored(upto)\n", ""),
]
SIDE = [
    store("the ground of a run is not sent", "recovery", 'ground or "?", "", now_ms', '"?", "", now_ms'),
    store("the delay of a row is not sent", "recovery", "                item.delay_ms,\n", "                0,\n"),
    store("the server is not sent", "recovery", "generation, server, phase,", 'generation, "", phase,'),
    store("the phase is not sent", "recovery", "generation, server, phase,", 'generation, server, "",'),
    store("what is wiped twice looks the same", "queue", "return os.urandom(8).hex()", 'return "once"'),
]
ALL = [*RESTORE, *SWEEP, *WAITING, *CONFIRM, *TRIM, *SIDE]
