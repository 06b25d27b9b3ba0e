-- tidy: no state changes; drops what has had its time
-- keys: jobs failed finished claims stats meta events
-- include: begin
-- ARGV: now by why, tombstones older than (ms), failed jobs that failed before (ms; '' keeps all: the caller knows how far the
--   mirror has come), stats older than (minutes), claims older than (ms), cursor of the scan of stats ('0' to begin)
-- Returns: tombstones dropped, failed records dropped, cursor to go on with ('0': done).
-- O(log N + 200).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local old = redis.call('ZRANGEBYSCORE', k_finished, '-inf', int(now - tonumber(ARGV[4])), 'LIMIT', 0, 200)
if #old > 0 then
  redis.call('ZREM', k_finished, unpack(old))
end
local failed = {}
if ARGV[5] ~= '' then
  failed = redis.call('ZRANGEBYSCORE', k_failed, '-inf', '(' .. ARGV[5], 'LIMIT', 0, 200)
  if #failed > 0 then
    redis.call('ZREM', k_failed, unpack(failed))
    redis.call('HDEL', k_jobs, unpack(failed))
    -- a tombstone each, so that a late re-send of `schedule` still finds them finished
    for i = 1, #failed do
      redis.call('ZADD', k_finished, int(now), failed[i])
    end
  end
end
local oldest = math.floor(now / 60000) - tonumber(ARGV[6])
local scan = redis.call('HSCAN', k_stats, ARGV[8], 'COUNT', 200)
for i = 1, #scan[2], 2 do
  local minute = tonumber(string.match(scan[2][i], '^%d+'))
  if minute and minute < oldest then
    redis.call('HDEL', k_stats, scan[2][i])
  end
end
if ARGV[8] == '0' then
  local claims = redis.call('HSCAN', k_claims, '0', 'COUNT', 200)
  for i = 1, #claims[2], 2 do
    local at = tonumber(string.match(claims[2][i + 1], '^%S+ (%d+)'))
    if at and at < now - tonumber(ARGV[7]) then
      redis.call('HDEL', k_claims, claims[2][i])
    end
  end
end
return {#old, #failed, scan[1]}
