-- settle: running -> succeeded (ack), scheduled (retry, snooze, ask, evict, park, crash), failed (fail) or cancelled (cancel)
-- keys: jobs high normal low runs leases cancels progress keys failed finished events wake meta stats spread asks offered names holders blocked waiters
-- include: begin bulk runs priority_bands tombstone asks words lines finish back wake crash spread
-- ARGV: now by(worker) why, max crashes, then per job (at most 200): id attempt nonce outcome delay detail times
--   outcome: ack, retry, snooze, ask (a poll was answered "not yet"), evict (its process was killed because of another job), park (the
--   worker lacks its task, or cannot call it with these arguments), fail, crash (its process died), cancel
--   delay: ms from Redis's now · detail: opaque JSON for the mirror
--   times: see spread.lua
-- Returns per job: done, already (settled before: sent again), lost (another claim holds it), gone (this run is unknown: Redis has
--   lost its data, or was rolled back to before the claim; the run can be adopted, and settled again).
-- A retry, snooze, ask, evict, park or crash of a job with a cancel request ends it as cancelled.
-- Snooze, ask, evict and park do not count the attempt, and write the event snoozed; ask adds one to `asks`, and its event has that number.
-- Evict and park are noted in the job's past (see runs.lua). crash leaves the past unchanged, and so does a snooze without a delay: that
-- run was returned and has not ended by itself.
-- Every end of a run frees the job's name. A job with a name that crashed or was returned keeps the date of its claim, so it is the next
-- of that name again.
-- O(log N) per job.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory, so that running jobs settle at maxmemory
local STRIDE, FIRST = 7, 5
local max_crashes = tonumber(ARGV[4])
local items = (#ARGV - FIRST + 1) / STRIDE
local reply, count, settled = {}, {}, {}
if items == 0 then
  return reply
end
local ids = {}
for i = 1, items do
  ids[i] = ARGV[FIRST + (i - 1) * STRIDE]
end
local runs = redis.call('HMGET', k_runs, unpack(ids))
local cancels = {}
-- Usually there are no cancel requests, no progress, no polls and no offers.
asks_there = redis.call('EXISTS', k_cancels, k_progress, k_asks, k_offered) > 0
noted = asks_there
if asks_there then
  cancels = redis.call('HMGET', k_cancels, unpack(ids))
end
if lines then
  lines.read(ids)
end

local function key_of(id, band)
  if band ~= string.upper(band) then
    return ''
  end
  local record = redis.call('HGET', k_jobs, id)
  local _, _, _, key = header(record or '')
  return key or ''
end

-- The past of a job, with one more eviction, or with the time of its first park.
local function noted_in(past, outcome)
  local evictions, unknown = string.match(past, '^e?(%d*)u?(%d*)$')
  if outcome == 'evict' then
    evictions = int((tonumber(evictions) or 0) + 1)
  elseif unknown == '' then
    unknown = int(now)
  end
  return (evictions ~= '' and 'e' .. evictions or '') .. (unknown ~= '' and 'u' .. unknown or '')
end

-- Whether the attempt does not count.
local function goes_back(outcome)
  return outcome == 'snooze' or outcome == 'ask' or outcome == 'evict' or outcome == 'park'
end

local function tally(kind)
  count[kind] = (count[kind] or 0) + 1
end

-- No claim holds the job. A snooze (ask, evict, park) or a crash leaves it as it was before the claim; any other end counted its attempt.
local function unheld(id, number, outcome, attempt)
  if redis.call('ZSCORE', k_finished, id) or redis.call('ZSCORE', k_failed, id) then
    return 'already'
  end
  local before = not goes_back(outcome) and outcome ~= 'crash' and (attempt or 0) < number
  return (before or redis.call('HEXISTS', k_jobs, id) == 0) and 'gone' or 'already'
end

for i = 1, items do
  local id, number, nonce, outcome, delay, detail, times = unpack(ARGV, FIRST + (i - 1) * STRIDE, FIRST + i * STRIDE - 1)
  number, delay = tonumber(number), tonumber(delay)
  local attempt, crashes, band, held, past = run_of(runs[i])
  if settled[id] then
    reply[i] = 'already'
  elseif not attempt or held == '' then
    reply[i] = unheld(id, number, outcome, attempt)
  elseif held ~= nonce or attempt ~= number then
    reply[i] = 'lost'
  else
    settled[id] = true
    reply[i] = 'done'
    local fields = id .. ' ' .. int(attempt) .. ' ' .. int(crashes) .. ' ' .. nonce
    local kind = outcome
    if cancels[i] and (outcome == 'retry' or goes_back(outcome)) then
      kind = 'cancel'
    end
    if kind == 'ack' then
      unlease(id)
      finish(id, key_of(id, band), 'succeeded')
      if asks_there then
        gather('HDEL', k_offered, id) -- after other ends tidy does it, because the job may be requeued
      end
      event('succeeded', fields .. '\n' .. detail)
      tally('succeeded')
      spread(times)
    elseif kind == 'cancel' then
      unlease(id)
      finish(id, key_of(id, band), 'cancelled')
      event('cancelled', fields .. '\n' .. detail)
      tally('cancelled')
    elseif kind == 'fail' then
      unlease(id)
      release(id, key_of(id, band))
      unrun(id)
      gather('ZADD', k_failed, int(now), id)
      event('failed', fields .. '\n' .. detail)
      tally('failed')
      spread(times)
    elseif kind == 'crash' then
      local fate = crash(id, attempt, crashes + 1, nonce, key_of(id, band), max_crashes, cancels[i], detail)
      if fate == 'again' then
        local date = lines and lines.first_due(id) or now
        back(id, attempt - 1, crashes + 1, band, date, past)
        event('crashed', id .. ' ' .. int(attempt) .. ' ' .. int(crashes + 1) .. ' ' .. nonce .. ' ' .. int(date)
          .. (#detail > 2 and '\n' .. detail or ''))
      end
      tally('crashed')
      if fate == 'failed' then
        tally('failed')
      end
    elseif kind == 'retry' then
      back(id, attempt, crashes, band, now + delay, '')
      event('retried', fields .. ' ' .. int(now + delay) .. '\n' .. detail)
      tally('retried')
    else
      local asks, date = nil, kind == 'snooze' and delay == 0 and lines and lines.first_due(id) or now + delay
      if kind == 'ask' then
        past, asks = '', asks_of(id) + 1
        gather('HSET', k_asks, id, int(asks))
      elseif kind ~= 'snooze' then
        past = noted_in(past, kind)
      elseif delay > 0 then
        past = ''
      end
      back(id, attempt - 1, crashes, band, date, past, asks)
      event('snoozed', fields .. ' ' .. int(date) .. (asks and ' ' .. int(asks) or '') .. '\n' .. detail)
      tally('snoozed')
    end
  end
end

-- `runs`, which has the holder of a job, comes last: if Redis refuses an earlier command, the worker settles the job again, with its event.
flush(1)
publish()
flush(3)
flush()
if lines then
  local date = lines.call()
  earliest = date and math.min(earliest or date, date) or earliest
end
cap_tombstones()
local minute = int(math.floor(now / 60000)) .. ':'
for kind, n in pairs(count) do
  redis.pcall('HINCRBY', k_stats, minute .. kind, n)
end
write_spread(count)
if earliest then
  wake_for(earliest)
end
return reply
