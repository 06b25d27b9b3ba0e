-- tidy: no state change; removes what has expired
-- keys: jobs high normal low leases cancels failed finished claims stats wake meta events asks offered names holders blocked waiters pauses rates opens firsts
-- include: begin tries bulk epoch tombstone priority_bands words lines wake
-- ARGV: now by why, tombstones older than (ms), failed jobs that failed before (ms; '' keeps all: the caller knows the position of the
--   mirror), stats older than (minutes), claims older than (ms), cursor ('0' to start; 'c' prefixes that of claims, which follow stats, then
--   'a' that of asks, 'o' that of offered, and 'f' that of firsts; 'e' after all of these). Names have a separate cursor after a colon, so that every call
--   covers some of them. It starts again while the others continue: 'n' prefixes that of names, 'h' that of holders, whose lease may be
--   gone, and 'b' that of blocked jobs, whose name may be free, or whose pause or rate may have been lost. Then ids of failed jobs (at most 200),
--   which are removed whatever their date.
-- Returns: tombstones removed, failed records removed, next cursor ('0': done).
-- O(log N + 200).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
try_writes()
local kept_ms, failed_before, kept_minutes, claims_ms, cursor = ARGV[4], ARGV[5], ARGV[6], ARGV[7], string.match(ARGV[8], '^%w+')
local naming = named and (string.match(ARGV[8], ':(%w+)$') or 'n0') or ''
local old = redis.call('ZRANGEBYSCORE', k_finished, '-inf', int(now - tonumber(kept_ms)), 'LIMIT', 0, 200)
if #old > 0 then
  redis.call('ZREM', k_finished, unpack(old))
end
local function forget_names(id)
  if lines then
    lines.free(id)
    lines.forget_waiter(id)
    lines.forget(id)
  end
end
local failed = {}
if failed_before ~= '' then
  failed = redis.call('ZRANGEBYSCORE', k_failed, '-inf', '(' .. failed_before, 'LIMIT', 0, 200)
end
for i = 9, #ARGV do
  if redis.call('ZSCORE', k_failed, ARGV[i]) then
    failed[#failed + 1] = ARGV[i]
  end
end
if #failed > 0 then
  redis.call('ZREM', k_failed, unpack(failed))
  redis.call('HDEL', k_jobs, unpack(failed))
  -- a tombstone each, so that a repeated `schedule` still finds them finished
  for i = 1, #failed do
    redis.call('ZADD', k_finished, tombstone('finished'), failed[i])
    forget_names(failed[i])
  end
  flush()
end
-- Cancel requests made while it was unknown whether the job runs, see cancel.lua. The job was not restored, so no worker runs it.
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
-- One part of a hash by id: entries of removed jobs. `letter`: the prefix of its cursors; `next`: the cursor after its end.
local function drop_gone(command, hash, letter, next)
  if string.sub(cursor, 1, 1) ~= letter then
    return
  end
  local after, told = unpack(redis.call('HSCAN', hash, string.sub(cursor, 2), 'COUNT', 200))
  for i = 1, #told, 2 do
    local id = told[i]
    if redis.call('HEXISTS', k_jobs, id) == 0 then
      redis.call(command, hash, id)
    end
  end
  cursor = after == '0' and next or letter .. after
end
drop_gone('HDEL', k_asks, 'a', 'o0')
drop_gone('HDEL', k_offered, 'o', 'f0')
drop_gone('HDEL', k_firsts, 'f', 'e')
if string.sub(naming, 1, 1) == 'n' then
  local after, found = unpack(redis.call('HSCAN', k_names, string.sub(naming, 2), 'COUNT', 200))
  for i = 1, #found, 2 do
    local id = found[i]
    if redis.call('HEXISTS', k_jobs, id) == 0 then
      forget_names(id)
    end
  end
  flush()
  naming = after == '0' and 'h0' or 'n' .. after
end
if string.sub(naming, 1, 1) == 'h' then
  local from, stay = tonumber(string.sub(naming, 2)), 0
  local holders = redis.call('ZRANGE', k_holders, from, from + 199)
  for i = 1, #holders do
    local name, id = string.match(holders[i], '^(.-)%z(.*)$')
    local letter = name and ({h = 'h', n = 'n', l = 'l'})[({['1'] = 'h', ['2'] = 'n', ['3'] = 'l'})[string.match(name, '^\3(.)')] or '']
    local turn = letter and tonumber(redis.call('ZSCORE', BANDS[letter], id) or '')
    local waits = turn or (letter and (tonumber(redis.call('ZSCORE', k_blocked, id) or '') or 0) < 0)
    if turn and turn > now and (lines.first_due(id) or turn) <= now then -- the clock was set back since its turn
      redis.call('ZADD', BANDS[letter], int(now), id)
      wake_for(now)
    end
    if waits or (name and not letter and redis.call('ZSCORE', k_leases, id)) then
      stay = stay + 1
    elseif letter then
      lines.end_turn(id, name, redis.call)
    else
      redis.call('ZREM', k_holders, holders[i])
      lines.note_freed(name or '')
    end
  end
  naming = #holders < 200 and 'b0' or 'h' .. int(from + stay) -- removing entries has moved the others up
end
-- Whether one of these words is paused, or its jobs still return; or jobs wait for this rate.
local function is_held(words, rate)
  for i = 1, #words do
    if redis.call('HEXISTS', k_pauses, words[i]) == 1 then
      return true
    end
  end
  return rate and redis.call('ZSCORE', k_opens, '\2' .. rate)
end
if string.sub(naming, 1, 1) == 'b' then
  local from, stay = tonumber(string.sub(naming, 2)), 0
  local blocked = redis.call('ZRANGE', k_blocked, from, from + 199, 'WITHSCORES')
  for i = 1, #blocked, 2 do
    local id, due = blocked[i], tonumber(blocked[i + 1])
    local name, most = lines.of(id)
    local band = header(redis.call('HGET', k_jobs, id) or '')
    local held = due < 0 and band and is_held(words_of(redis.call('HGET', k_jobs, id), name), lines.rate_of(id))
    local behind, holder
    if band and due >= 0 then
      behind, holder = lines.waits_for_turn(id, band, due)
    end
    local for_name = name and due >= 0 and not behind
    if not band then
      redis.call('ZREM', k_blocked, id)
    elseif held or holder or (for_name and not lines.has_room(name, most)) then
      stay = stay + 1
    elseif for_name then -- it has had its turn
      lines.count(name)
      lines.unblock(id, band)
      redis.call('ZADD', BANDS[band], int(due), id)
      wake_for(due)
    else
      lines.unblock(id, band)
      wake_for(lines.put(id, band, math.abs(due), redis.call))
    end
  end
  naming = #blocked < 400 and '' or 'b' .. int(from + stay)
  local full = redis.call('ZRANGEBYSCORE', k_rates, '-inf', int(now), 'LIMIT', 0, 200) -- all their tokens are there
  if #full > 0 then
    redis.call('ZREM', k_rates, unpack(full))
  end
  if redis.call('EXISTS', k_pauses, k_opens) == 0 then
    if redis.call('EXISTS', k_names, k_holders, k_blocked, k_rates) == 0 then
      redis.call('HDEL', k_meta, 'named')
    elseif named == '2' then
      redis.call('HSET', k_meta, 'named', '1')
    end
  end
end
if lines then
  wake_for(lines.call())
end
if naming ~= '' then
  cursor = cursor .. ':' .. naming
elseif cursor == 'e' then
  cursor = '0'
end
return {#old, #failed, cursor}
