-- confirm: no state change; records that Redis holds all that the database has seen, or how far the restore has come
-- keys: finished events wake meta
-- include: begin wake epoch position
-- ARGV: now by why, the generation that was checked, the run of the server that was checked ('' for any), phase, a new generation ('' keeps
--   the current one), an id that new events must follow ('' any), the last event that the database has, progress to note: who done total
--   phase: '' complete; found (no process works on it yet) -> sweep (jobs that the rows decide about are removed) -> adopt (workers report
--   their runs, rows are restored) -> rest (running and due jobs are restored: claims continue)
-- Returns ok; changed if the generation or the server has changed; busy if another than `who` has worked on it within 5 s.
-- When a sweep starts, with a new generation, all tombstones are removed, because they are as old as the data. The rows decide, and
-- publications with the previous generation are refused, see schedule.lua. Tombstones of later ends stay.
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
  -- The clock may lag, too; events with ids before those in the rows would not be applied.
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
