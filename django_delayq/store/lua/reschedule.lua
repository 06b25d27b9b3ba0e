-- reschedule: scheduled -> scheduled, another date (run now: delay 0)
-- keys: jobs high normal low leases failed finished keys events wake meta
-- include: begin lanes wake holder
-- ARGV: now by why, due ('' to use delay), delay ms from Redis' now, then ids (at most 200); '=' before it makes it a business key
-- Returns per id: status id due. status: done, running, finished, unknown.
-- O(log N) per job.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local due = tonumber(ARGV[4]) or (now + tonumber(ARGV[5]))
local reply, moved = {}, false
for i = 6, #ARGV do
  local id = ARGV[i]
  if string.sub(id, 1, 1) == '=' then
    id = holder_of(string.sub(id, 2)) or ''
  end
  local record = id ~= '' and redis.call('HGET', k_jobs, id)
  local lane = record and header(record)
  local status = 'unknown'
  if record and redis.call('ZSCORE', k_leases, id) then
    status = 'running'
  elseif lane and redis.call('ZSCORE', LANES[lane], id) then
    status = 'done'
    redis.call('ZADD', LANES[lane], int(due), id)
    event('rescheduled', id .. ' ' .. int(due))
    moved = true
  elseif record or (id ~= '' and redis.call('ZSCORE', k_finished, id)) then
    status = 'finished'
  end
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = status, id, int(due)
end
if moved then
  wake_for(due)
end
publish()
return reply
