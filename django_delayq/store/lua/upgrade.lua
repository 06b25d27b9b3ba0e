-- upgrade: no state changes; from now on the queue has the newest format that the caller knows
-- keys: events meta
-- include: begin
-- ARGV: now by why, ms for which no process of an older release may have called (0: whoever has), the format that it must have at least
-- Returns the format as it was and as it is, then per older format of which a process has called: format, ms since it did.
-- O(formats).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local quiet, least = tonumber(ARGV[4]), tonumber(ARGV[5])
local AFTER = 2 -- where the reply says the format as it is
local reply, alone = {int(format), int(format)}, true
for older = 1, FORMAT - 1 do
  local seen = tonumber(redis.call('HGET', k_meta, 'seen:' .. older) or '')
  if seen and seen == seen then -- somebody may have written "nan"
    local since = math.max(0, now - seen) -- the clock may have been put back
    reply[#reply + 1], reply[#reply + 2] = int(older), int(since)
    alone = alone and since >= quiet
  end
end
if alone and format >= least and format < FORMAT then
  redis.call('HSET', k_meta, 'format', int(FORMAT))
  reply[AFTER] = int(FORMAT)
end
return reply
