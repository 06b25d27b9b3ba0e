-- pause: no state change; stops the claims of the queue, or allows them again
-- keys: events wake meta
-- include: begin wake
-- ARGV: now by why, '1' to pause or '0' to resume; '1' to pause only during a restore: a caller that checked before it ended comes too late
-- Returns 1 if that changed something, otherwise 0.
-- O(1).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local pauses = ARGV[4] == '1'
local paused = redis.call('HGET', k_meta, 'paused')
if pauses then
  if paused or (ARGV[5] == '1' and not rolled) then
    return 0
  end
  redis.call('HSET', k_meta, 'paused', int(now), 'paused_by', by, 'paused_why', why)
  event('paused', '')
else
  if not paused then
    return 0
  end
  redis.call('HDEL', k_meta, 'paused', 'paused_by', 'paused_why')
  event('resumed', '')
  push_token()
end
publish()
return 1
