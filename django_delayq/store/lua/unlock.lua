-- unlock: no job changes; frees a lock and notifies waiting callers
-- keys: locks lock_ends lock_waits unlocked meta events
-- include: begin locks
-- ARGV: now by why, name, token, the fence if this call is repeated after a lost reply; '' the first time
-- Returns done, lost (another holder has it), gone (no holder has it: the first call freed it, or its lease expired and another holder had
--   it, or Redis lost its data), forgotten (for a repeated call: Redis lost its data since the lock was taken).
-- Writes no event of the queue: no job has changed. If a caller waits for the name, it is added to `unlocked`, which keeps the last 64.
-- O(log N).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory, so that locks are given back at maxmemory
local name, token = ARGV[4], ARGV[5]
local _, held = lock_of(name)
if held ~= token then
  local fence = tonumber(ARGV[6])
  if fence and fence < (tonumber(redis.call('HGET', k_meta, 'first_fence')) or math.huge) then
    return {'forgotten'}
  end
  return {held and 'lost' or 'gone'}
end
redis.call('HDEL', k_locks, name)
redis.call('ZREM', k_lock_ends, name)
local waits = redis.call('ZSCORE', k_lock_waits, name)
if waits and tonumber(waits) > now then
  local told = redis.pcall('XADD', k_unlocked, 'MAXLEN', 64, '*', 'name', name)
  if told.err then
    -- Not a stream, or one without free ids: another program wrote it.
    redis.call('UNLINK', k_unlocked)
    redis.call('XADD', k_unlocked, 'MAXLEN', 64, '*', 'name', name)
  end
end
return {'done'}
