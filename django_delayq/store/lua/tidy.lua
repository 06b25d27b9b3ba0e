-- tidy: no state changes; drops what has had its time
-- keys: jobs cancels failed finished claims stats meta events asks offered
-- include: begin ground tombstone
-- ARGV: now by why, tombstones older than (ms), failed jobs that failed before (ms; '' keeps all: the caller knows how far the
--   mirror has come), stats older than (minutes), claims older than (ms), cursor ('0' to begin; 'c' before that of claims,
--   which are looked through behind stats, then 'a' before that of asks, of which older releases leave those of ended jobs, and 'o'
--   before that of offered, which come last)
-- Returns: tombstones dropped, failed records dropped, cursor to go on with ('0': done).
-- O(log N + 200).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local kept_ms, failed_before, kept_minutes, claims_ms, cursor = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local old = redis.call('ZRANGEBYSCORE', k_finished, '-inf', int(now - tonumber(kept_ms)), 'LIMIT', 0, 200)
if #old > 0 then
  redis.call('ZREM', k_finished, unpack(old))
end
local failed = {}
if failed_before ~= '' then
  failed = redis.call('ZRANGEBYSCORE', k_failed, '-inf', '(' .. failed_before, 'LIMIT', 0, 200)
  if #failed > 0 then
    redis.call('ZREM', k_failed, unpack(failed))
    redis.call('HDEL', k_jobs, unpack(failed))
    -- a tombstone each, so that a late re-send of `schedule` still finds them finished
    for i = 1, #failed do
      redis.call('ZADD', k_finished, tombstone('finished'), failed[i])
    end
  end
end
-- Requests for jobs of which nobody knew whether they run, see cancel.lua, and that have not come back: nobody runs them.
local asked, rolled, confirmed = values_of(k_meta, 'asked', 'rolled', 'server')
if asked and not rolled and confirmed == server() then
  local _, requests = unpack(redis.call('HSCAN', k_cancels, '0', 'COUNT', 200))
  for i = 1, #requests, 2 do
    local id = requests[i]
    if redis.call('HEXISTS', k_jobs, id) == 0 then
      redis.call('HDEL', k_cancels, id)
    end
  end
end
if string.find(cursor, '^%d') then
  local oldest = math.floor(now / 60000) - tonumber(kept_minutes)
  local after, counts = unpack(redis.call('HSCAN', k_stats, cursor, 'COUNT', 200))
  for i = 1, #counts, 2 do
    local count = counts[i]
    local minute = tonumber(string.match(count, '^%d+'))
    if minute and minute < oldest then
      redis.call('HDEL', k_stats, count)
    end
  end
  cursor = after == '0' and 'c0' or after
end
if string.sub(cursor, 1, 1) == 'c' then
  local after, claims = unpack(redis.call('HSCAN', k_claims, string.sub(cursor, 2), 'COUNT', 200))
  for i = 1, #claims, 2 do
    local worker, claim = claims[i], claims[i + 1]
    local at = tonumber(string.match(claim, '^%S+ (%d+)'))
    if at and at < now - tonumber(claims_ms) then
      redis.call('HDEL', k_claims, worker)
    end
  end
  cursor = after == '0' and 'a0' or 'c' .. after
end
if string.sub(cursor, 1, 1) == 'a' then
  local after, asks = unpack(redis.call('HSCAN', k_asks, string.sub(cursor, 2), 'COUNT', 200))
  for i = 1, #asks, 2 do
    local id = asks[i]
    if redis.call('HEXISTS', k_jobs, id) == 0 then
      redis.call('HDEL', k_asks, id)
    end
  end
  cursor = after == '0' and 'o0' or 'a' .. after
end
if string.sub(cursor, 1, 1) == 'o' then
  local after, offers = unpack(redis.call('HSCAN', k_offered, string.sub(cursor, 2), 'COUNT', 200))
  for i = 1, #offers, 2 do
    local id = offers[i]
    if redis.call('HEXISTS', k_jobs, id) == 0 then
      redis.call('HDEL', k_offered, id)
    end
  end
  cursor = after == '0' and '0' or 'o' .. after
end
return {#old, #failed, cursor}
