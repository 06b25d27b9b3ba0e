-- inspect: no state change and no write; reads single jobs for people
-- keys: jobs high normal low runs leases cancels progress failed finished meta events asks names holders blocked waiters pauses opens
-- include: begin runs priority_bands asks words
-- ARGV: now by why, then ids (at most 200)
-- Returns: now, then per id: state (scheduled, running, failed, finished, unknown) date attempt crashes asks fence cancel progress record,
--   name most turn blocked ('1': it is due and waits for its name) holder (the first one of that name; '' none) paused (the word that
--   holds it, or would when it is due; '' none) rate ('' none) token (the ms of the next token, if it waits for one; '' otherwise), fair (its fair
--   word; '' none) place (how many jobs of that word come before it; 0 unless it waits for the turn) stopped ('1': its queue is paused).
--   date: due, lease end, failed at or finished at, by state; finished: a tombstone, succeeded or cancelled.
-- O(log N) per id.
local RANKS = {h = '1', n = '2', l = '3'}
local reply = {int(now)}
local paused, paused_until = values_of(k_meta, 'paused', 'paused_until')
local stopped = paused and (tonumber(paused_until or '') or math.huge) > now
for i = 4, #ARGV do
  local id = ARGV[i]
  local record = redis.call('HGET', k_jobs, id)
  local attempt, crashes, _, nonce = run_of(redis.call('HGET', k_runs, id))
  local asks = attempt and asks_of(id) or 0
  local band = record and header(record)
  local state, date = 'unknown', '0'
  local lease = redis.call('ZSCORE', k_leases, id)
  local blocked = tonumber(redis.call('ZSCORE', k_blocked, id) or '')
  local due = band and (redis.call('ZSCORE', BANDS[band], id) or (blocked and int(math.abs(blocked))))
  local failed = redis.call('ZSCORE', k_failed, id)
  if lease then
    state, date = 'running', lease
  elseif due then
    state, date = 'scheduled', due
  elseif failed then
    state, date = 'failed', failed
  else
    local finished = redis.call('ZSCORE', k_finished, id)
    if finished then
      state, date = 'finished', finished
    end
  end
  local values = {state, date, int(attempt or 0), int(crashes or 0), int(asks), nonce or '', redis.call('HGET', k_cancels, id) or '',
    redis.call('HGET', k_progress, id) or '', record or '', '', '0', '0', '', '', '', '', '', '', '0', ''}
  local most, turn, own, name, rest = string.match(redis.call('HGET', k_names, id) or '', '^(%d+):(%d+):(%d+):([^%c]*)(.*)$')
  local rate, fair = string.match(rest or '', '^\2%d+:%d+:%d+:([^%c]+)'), string.match(rest or '', '\3([^%c]+)$')
  if name and name ~= '' then
    local held = redis.call('ZRANGE', k_holders, '[' .. name .. '\0', '(' .. name .. '\1', 'BYLEX', 'LIMIT', 0, 1)[1]
    values[10], values[11], values[12] = name, most, turn
    values[13] = blocked and blocked >= 0 and '1' or ''
    values[14] = held and string.sub(held, #name + 2) or ''
  end
  if state == 'scheduled' and stopped then
    values[20] = '1'
  end
  if state == 'scheduled' and named then
    local words, held = words_of(record or '', name ~= '' and name or nil), blocked and blocked < 0
    for w = 1, #words do
      local pause = redis.call('HGET', k_pauses, words[w])
      if values[15] == '' and pause and (held or pause == '0' or (tonumber(pause) or 0) > now) then
        values[15] = words[w]
      end
    end
    if rate and held and values[15] == '' then
      values[17] = int(tonumber(redis.call('ZSCORE', k_opens, '\2' .. rate) or now))
    end
  end
  values[16] = rate or ''
  if fair then
    values[18] = fair
    if state == 'scheduled' and tonumber(own) > 0 then
      values[2] = own -- its place in the band has the time of its turn
    end
    local line = '\3' .. (band and RANKS[band] or '') .. fair .. (rate and '\2' .. rate or '')
    local entry = line .. '\0' .. (band and RANKS[band] or '') .. string.format('%015.0f', math.max(1, tonumber(own))) .. '\0' .. id
    if blocked and blocked >= 0 and redis.call('ZSCORE', k_waiters, entry) then
      values[13] = ''
      values[19] = int(redis.call('ZLEXCOUNT', k_waiters, '[' .. line .. '\0', '[' .. entry))
    end
  end
  for v = 1, #values do
    reply[#reply + 1] = values[v]
  end
end
return reply
