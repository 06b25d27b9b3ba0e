-- pause: no state change; stops the claims of the queue, or allows them again
-- keys: events wake meta
-- include: begin wake
-- ARGV: now by why, '1' to pause or '0' to resume; '1' to pause only during a restore: a caller that checked before it ended comes too late;
--   ms until which it is paused, 0 for no end; '1' if the database does not know of this change
-- Returns 1 if that changed something, otherwise 0. A pause by a person takes the place of one that waits for a restore by hand.
-- O(1).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local pauses, restores, till, alone = ARGV[4] == '1', ARGV[5] == '1', ARGV[6] or '0', ARGV[7] == '1'
local paused, before, former = unpack(redis.call('HMGET', k_meta, 'paused', 'paused_by', 'paused_until'))
if alone then
  redis.call('HSET', k_meta, 'paused_alone', '1')
elseif not restores then
  redis.call('HDEL', k_meta, 'paused_alone')
end
if pauses then
  local same = paused and (former or '0') == till and (restores or before ~= 'restore')
  if same or (restores and (paused or not rolled)) then
    return 0
  end
  redis.call('HSET', k_meta, 'paused', int(now), 'paused_by', by, 'paused_why', why)
  if till == '0' then
    redis.call('HDEL', k_meta, 'paused_until')
  else
    redis.call('HSET', k_meta, 'paused_until', till)
  end
  event('paused', '')
else
  if not paused then
    return 0
  end
  redis.call('HDEL', k_meta, 'paused', 'paused_by', 'paused_why', 'paused_until')
  event('resumed', '')
  push_token()
end
publish()
return 1
