-- prolong: no job changes; extends locks by another lease
-- keys: locks lock_ends meta events
-- include: begin locks
-- ARGV: now by why, then per lock (at most 200): name token lease ms
-- Returns per lock: held, lost (another holder has it), gone (no holder has it: its lease expired long ago, or another holder had it, or
--   Redis lost its data). An expired lease is extended if no other holder has taken the name since.
-- Writes no event: no job has changed.
-- O(log N) per lock.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory, so that locks are held at maxmemory
local STRIDE, FIRST = 3, 4
local reply = {}
for i = FIRST, #ARGV, STRIDE do
  local name, token, lease = unpack(ARGV, i, i + STRIDE - 1)
  local _, held = lock_of(name)
  if held == token then
    redis.call('ZADD', k_lock_ends, int(now + tonumber(lease)), name)
    reply[#reply + 1] = 'held'
  else
    reply[#reply + 1] = held and 'lost' or 'gone'
  end
end
return reply
