-- resign: no state change; gives a record another signature, unless the record has changed
-- keys: jobs meta events
-- include: begin
-- ARGV: now by why, then per job (at most 200): id, SHA-1 of the record that was read, in hex, and the same record with the new signature
-- Returns per job: done, changed, gone.
-- Writes no event: nothing visible has changed.
-- O(length of the record) per job.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory, so that keys can be changed at maxmemory too
local reply = {}
for i = 4, #ARGV, 3 do
  local id, read, signed = unpack(ARGV, i, i + 2)
  local record = redis.call('HGET', k_jobs, id)
  local status = 'gone'
  if record and redis.sha1hex(record) == read then
    redis.call('HSET', k_jobs, id, signed)
    status = 'done'
  elseif record then
    status = 'changed'
  end
  reply[#reply + 1] = status
end
return reply
