-- tidy: no state changes; drops what has had its time
-- keys: jobs cancels failed finished claims stats meta events
-- include: begin ground
-- ARGV: now by why, tombstones older than (ms), failed jobs that failed before (ms; '' keeps all: the caller knows how far the
--   mirror has come), stats older than (minutes), claims older than (ms), cursor ('0' to begin; 'c' before that of claims,
--   which are looked through behind stats)
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
-- Requests for jobs of which nobody knew whether they run, see cancel.lua, and that have not come back: nobody runs them.
local meta = redis.call('HMGET', k_meta, 'asked', 'rolled', 'server')
if meta[1] and not meta[2] and meta[3] == server() then
  local asked = redis.call('HSCAN', k_cancels, '0', 'COUNT', 200)[2]
  for i = 1, #asked, 2 do
    if redis.call('HEXISTS', k_jobs, asked[i]) == 0 then
      redis.call('HDEL', k_cancels, asked[i])
    end
  end
end
local cursor = ARGV[8]
if string.sub(cursor, 1, 1) ~= 'c' then
  local oldest = math.floor(now / 60000) - tonumber(ARGV[6])
  local scan = redis.call('HSCAN', k_stats, cursor, 'COUNT', 200)
  for i = 1, #scan[2], 2 do
    local minute = tonumber(string.match(scan[2][i], '^%d+'))
    if minute and minute < oldest then
      redis.call('HDEL', k_stats, scan[2][i])
    end
  end
  cursor = scan[1] == '0' and 'c0' or scan[1]
end
if string.sub(cursor, 1, 1) == 'c' then
  local scan = redis.call('HSCAN', k_claims, string.sub(cursor, 2), 'COUNT', 200)
  for i = 1, #scan[2], 2 do
    local at = tonumber(string.match(scan[2][i + 1], '^%S+ (%d+)'))
    if at and at < now - tonumber(ARGV[7]) then
      redis.call('HDEL', k_claims, scan[2][i])
    end
  end
  cursor = scan[1] == '0' and '0' or 'c' .. scan[1]
end
return {#old, #failed, cursor}
