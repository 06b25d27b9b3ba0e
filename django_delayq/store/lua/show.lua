-- show: no job changes; writes the beat of a worker, or a request to a worker
-- keys: workers asked meta events
-- include: begin
-- ARGV: now by why, worker, facts (JSON; '' removes the worker, '-' leaves what is there), request ('' removes it, '-' leaves it)
-- Returns the request of that worker, nothing for none.
-- Writes no event: no job has changed.
-- O(1).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local worker, facts, request = unpack(ARGV, 4, 6)
if facts == '' then
  redis.call('HDEL', k_workers, worker)
elseif facts ~= '-' then
  redis.call('HSET', k_workers, worker, facts)
end
if request == '' then
  redis.call('HDEL', k_asked, worker)
elseif request ~= '-' then
  redis.call('HSET', k_asked, worker, request)
end
return redis.call('HGET', k_asked, worker)
