-- offer: no state change; pushes what a running job offers to a list or stream, once per job
-- keys: runs cancels offered meta events
-- include: begin runs target
-- ARGV: now by(worker) why, id attempt nonce kind most, then of a stream each field and its value, of a list one text
--   kind: stream, list; look: nothing is pushed; note: that was done elsewhere, the text is its place · most: how many entries may be there, '' any number; of more, the oldest go. A stream is cut by whole nodes, so that
--   some more may stay
-- The target's key stands behind ours, but of look and note, which are for targets of another slot.
-- Returns status, place. status: offered, free (to a look: it is to be pushed), again (an earlier run of this job has: nothing is pushed), cancel (that was asked for: nothing is
--   pushed), lost (another claim holds the job), gone (no claim does: it has ended, or Redis lost its contents, and the run may be adopted).
--   place: the id of the entry, or how long the list was with it.
-- Errors before any write: those of the push, such as WRONGTYPE and OOM. It is the first write, so that Redis refuses it at maxmemory, and is
--   noted in the same call: who comes behind a lost reply, or takes the job over, finds the note.
-- Writes no event: nothing that the picture shows has changed.
-- O(1), and the entries that go.
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
