-- confirm: no state change; records that Redis holds all that the database has seen, or how far the restore has come
-- keys: finished events wake meta
-- include: begin wake epoch position
-- ARGV: now by why, the generation that was looked at, the run of the server that was looked at ('' for any), phase, a new generation ('' keeps
--   the one that is there), an id that new events must be behind ('' any), the last event that the database has, progress to note: who done total
--   phase: '' all is there; found (nobody works on it yet) -> sweep (what the rows decide about leaves) -> adopt (workers tell what they run, rows
--   come back) -> rest (what ran and what was due is in: claims go on)
-- Returns ok; changed when the generation or the server is another by now; busy while another than `who` has worked on it within 5 s.
-- Where a sweep begins, with a new generation, all tombstones go at once: they are as old as the data. Rows decide; and a publication
-- that knows the former generation is refused, see schedule.lua. Those of a later end stay.
-- O(1).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local looked, looked_at, phase, new, behind, mirrored, progress = unpack(ARGV, 4, 10)
local here = server()
local generation, restoring = values_of(k_meta, 'generation', 'restoring')
if (generation or '') ~= looked or (looked_at ~= '' and looked_at ~= here) then
  return 'changed'
end
local at, who = string.match(restoring or '', '^(%d+) (%S+)')
if at and progress ~= '' and who ~= string.match(progress, '^%S+') and math.abs(now - tonumber(at)) < 5000 then
  return 'busy'
end
if behind ~= '' then
  -- The clock may be behind, too; events that seem older than what the rows have seen would not be folded.
  local ms, number = position(behind)
  redis.pcall('XADD', k_events, int(ms) .. '-' .. int(number + 1), 'at', int(now), 'by', by)
end
if new ~= '' then
  redis.call('HSET', k_meta, 'generation', new)
  if phase == 'sweep' then
    redis.call('UNLINK', k_finished)
  end
end
if phase == 'found' then
  redis.call('HSET', k_meta, 'rolled', phase)
  return 'ok'
end
redis.call('HSET', k_meta, 'server', here)
if phase ~= '' then
  redis.call('HSET', k_meta, 'rolled', phase, 'restoring', int(now) .. ' ' .. progress)
else
  note_mirrored(mirrored)
  redis.call('HDEL', k_meta, 'rolled', 'restoring', 'moved_to', 'moved_at')
end
push_token()
return 'ok'
