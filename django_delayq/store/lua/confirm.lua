-- confirm: no state changes; says whether the data on this server is what the database has seen of it
-- keys: events wake meta
-- include: begin wake ground position
-- ARGV: now by why, the generation that was looked at, a new one ('' when all is well or restored), an id that new events must
--   be behind ('' any), the last event that the database has, the run of the server that was looked at ('' for any)
-- Returns ok, or changed when the generation or the server is another by now.
-- With a new generation it says that the data was rolled back: workers then adopt what they hold, and none claims until this is called
-- again without one.
-- O(1).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local looked, new, behind, mirrored = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if (redis.call('HGET', k_meta, 'generation') or '') ~= looked or (ARGV[8] ~= '' and ARGV[8] ~= server()) then
  return 'changed'
end
if behind ~= '' then
  -- The clock may be behind, too; events that seem older than what the rows have seen would not be folded.
  local ms, number = position(behind)
  redis.pcall('XADD', k_events, int(ms) .. '-' .. int(number + 1), 'at', int(now), 'by', by)
end
if new ~= '' then
  redis.call('HSET', k_meta, 'generation', new, 'rolled', '1', 'restoring', int(now) .. ' ' .. by .. ' 0 0')
else
  note_mirrored(mirrored)
  redis.call('HSET', k_meta, 'server', server())
  redis.call('HDEL', k_meta, 'rolled', 'restoring', 'moved_to', 'moved_at')
  push_token()
end
return 'ok'
