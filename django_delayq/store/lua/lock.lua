-- lock: no job changes; takes a lock for one lease
-- keys: locks lock_ends lock_waits meta events
-- include: begin locks
-- ARGV: now by(the holder, in words) why, name, token (of this holding, letters and digits), lease ms, the ms for which the caller
--   waits if the lock is taken (0: not at all)
-- Returns locked, fence · or taken, since when (ms), by whom, ms left of that lease, now.
--   fence: a number that increases with every holding: one more than the last of the queue, and at least the clock in microseconds. So it
--   also increases after a loss of Redis's data, unless the clock was set back. The same token gets the same fence, and a new lease.
-- Writes no event: no job has changed.
-- O(log N), and removes 40 expired entries.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory, so that running jobs get their locks at maxmemory
local since_ms = since -- the fraction of a ms, see begin.lua
local name, token, lease, waits = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local left = redis.call('ZRANGEBYSCORE', k_lock_ends, '-inf', int(now - LOCK_LEFT), 'LIMIT', 0, 20)
if #left > 0 then
  redis.call('ZREM', k_lock_ends, unpack(left))
  redis.call('HDEL', k_locks, unpack(left))
end
local gone = redis.call('ZRANGEBYSCORE', k_lock_waits, '-inf', int(now), 'LIMIT', 0, 20)
if #gone > 0 then
  redis.call('ZREM', k_lock_waits, unpack(gone))
end
local fence, held, since, who, ends = lock_of(name)
if held and held ~= token and ends > now then
  if waits > 0 then
    redis.call('ZADD', k_lock_waits, 'GT', int(now + waits), name)
  end
  return {'taken', since, who, int(ends - now), int(now)}
end
if held ~= token then
  local last = tonumber(string.match(redis.call('HGET', k_meta, 'fence') or '', '^%d+$')) or 0
  if last > 9e15 then
    last = 0 -- an invalid value, and adding one would give the same number
  end
  fence = int(math.max(last + 1, math.floor((now + since_ms) * 1000)))
  if last == 0 then
    redis.call('HSET', k_meta, 'first_fence', fence) -- Redis has no lock from before that
  end
  redis.call('HSET', k_meta, 'fence', fence)
  redis.call('HSET', k_locks, name, fence .. ' ' .. token .. ' ' .. int(now) .. ' ' .. by)
end
redis.call('ZADD', k_lock_ends, int(now + lease), name)
return {'locked', fence}
