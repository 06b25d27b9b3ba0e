-- offer: no state change; pushes what a running job offers to a list or stream, once per job
-- keys: runs cancels offered meta events
-- include: begin runs target
-- ARGV: now by(worker) why, id attempt nonce kind most, then each field and value of a stream entry, or the text of a list entry
--   kind: stream, list; look: nothing is pushed; note: the entry was pushed elsewhere, the text is its place
--   most: the maximum number of entries, '' unlimited; the oldest are removed. A stream is trimmed by whole nodes, so some more can stay
-- The target's key is the last one, except for look and note, which are for targets of another slot.
-- Returns status, place. status: offered, free (for look: it must be pushed), again (an earlier run of this job pushed it: nothing is
--   pushed), cancel (a cancel was requested: nothing is pushed), lost (another claim holds the job), gone (no claim holds it: it has ended,
--   or Redis lost its data, and the run can be adopted).
--   place: the id of the entry, or the length of the list with it.
-- Errors before any write: those of the push, such as WRONGTYPE and OOM. The push is the first write, so Redis refuses it at maxmemory. It is
--   noted in the same call: a caller that repeats a lost reply, or takes the job over, finds the note.
-- Writes no event: nothing visible has changed.
-- O(1), and the entries that are removed.
local id, number, nonce, kind, most = unpack(ARGV, 4, 8)
local FIRST = 9
local attempt, _, _, held = run_of(redis.call('HGET', k_runs, id))
if not attempt or held == '' then
  return {'gone', ''}
elseif held ~= nonce or attempt ~= tonumber(number) then
  return {'lost', ''}
end
local before = redis.call('HGET', k_offered, id)
if before then
  return {'again', before}
elseif kind ~= 'note' and redis.call('HEXISTS', k_cancels, id) == 1 then
  return {'cancel', ''}
elseif kind == 'look' then
  return {'free', ''}
end
local place
if kind == 'note' then
  place = ARGV[FIRST]
elseif kind == 'list' then
  place = redis.pcall('RPUSH', target, ARGV[FIRST])
elseif most == '' then
  place = redis.pcall('XADD', target, '*', unpack(ARGV, FIRST))
else
  place = redis.pcall('XADD', target, 'MAXLEN', '~', most, '*', unpack(ARGV, FIRST))
end
if type(place) == 'table' then
  return place -- the error
end
place = tostring(place)
redis.call('HSET', k_offered, id, place)
if kind == 'list' and most ~= '' then
  redis.call('LTRIM', target, -tonumber(most), -1)
end
return {'offered', place}
