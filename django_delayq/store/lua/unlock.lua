-- unlock: no job changes; frees a lock and notifies those who wait for it
-- keys: locks lock_ends lock_waits unlocked meta events
-- include: begin locks
-- ARGV: now by why, name, token, fence of a caller that repeats this, since a reply was lost; '' for the first time
-- Returns done, lost (somebody else has it), gone (nobody has: this was said before, or its lease ran out and somebody has had it since, or
--   Redis lost its contents), forgotten (of a repeat: Redis lost its contents since the lock was taken).
-- Writes no event of the queue: no job has changed. Into `unlocked` goes the name, if somebody waits for it; of such entries the last 64 stay.
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
    -- Not a stream, or one whose ids have run out: somebody else wrote that.
    redis.call('UNLINK', k_unlocked)
    redis.call('XADD', k_unlocked, 'MAXLEN', 64, '*', 'name', name)
  end
end
return {'done'}
