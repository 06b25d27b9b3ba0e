-- settle: running -> succeeded (ack) | scheduled (retry, snooze, crash) | failed (fail) | cancelled (cancel)
-- keys: jobs high normal low runs leases cancels progress keys failed finished events wake meta stats spread
-- include: begin bulk runs lanes finish wake crash spread
-- ARGV: now by(worker) why, max crashes, then per job (at most 200): id attempt nonce outcome delay detail ran
--   outcome: ack, retry, snooze, fail, crash (its process died), cancel · delay: ms from Redis' now · detail: opaque JSON for the mirror
--   ran: bucket of its run time, see spread.lua; '' for a run that nobody timed
-- Returns per job: done, already (settled before: a re-send), lost (another claim holds it), gone (this run is not known here: Redis has
--   lost its contents, or was rolled back to before the claim; it may be adopted, and settled again).
-- A retry, snooze or crash of a job whose cancel was requested ends it as cancelled.
-- O(log N) per job.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory, so that running jobs settle at maxmemory
local STRIDE = 7
local max_crashes = tonumber(ARGV[4])
local items = (#ARGV - 4) / STRIDE
local reply, count, earliest, settled = {}, {}, nil, {}
if items == 0 then
  return reply
end
local ids = {}
for i = 1, items do
  ids[i] = ARGV[5 + (i - 1) * STRIDE]
end
local runs = redis.call('HMGET', k_runs, unpack(ids))
local cancels = redis.call('EXISTS', k_cancels) == 1 and redis.call('HMGET', k_cancels, unpack(ids)) or {} -- mostly nobody asks

local function key_of(id, lane)
  if lane ~= string.upper(lane) then
    return ''
  end
  local record = redis.call('HGET', k_jobs, id)
  local _, _, _, key = header(record or '')
  return key or ''
end

-- Puts a job back into the schedule; what it has behind it stays in `runs`.
local function back(id, attempt, crashes, lane, due)
  unlease(id)
  gather('ZADD', LANES[lane], int(due), id)
  if attempt == 0 and crashes == 0 then
    gather('HDEL', k_runs, id)
  else
    gather('HSET', k_runs, id, int(attempt) .. ':' .. int(crashes) .. ':' .. lane .. ':')
  end
  if not earliest or due < earliest then
    earliest = due
  end
end

local function tally(kind)
  count[kind] = (count[kind] or 0) + 1
end

-- Nobody holds the job. A snooze or a crash leaves it as it was before the claim; after any other end, its attempt has been counted.
local function unheld(id, number, outcome, attempt)
  if redis.call('ZSCORE', k_finished, id) or redis.call('ZSCORE', k_failed, id) then
    return 'already'
  end
  local before = outcome ~= 'snooze' and outcome ~= 'crash' and (attempt or 0) < number
  return (before or redis.call('HEXISTS', k_jobs, id) == 0) and 'gone' or 'already'
end

for i = 1, items do
  local at = 5 + (i - 1) * STRIDE
  local id, number, nonce, outcome = ids[i], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
  local delay, detail = tonumber(ARGV[at + 4]) or 0, ARGV[at + 5]
  local attempt, crashes, lane, held = run_of(runs[i])
  if settled[id] then
    reply[i] = 'already'
  elseif not attempt or held == '' then
    reply[i] = unheld(id, number, outcome, attempt)
  elseif held ~= nonce or attempt ~= number then
    reply[i] = 'lost'
  else
    settled[id] = true
    reply[i] = 'done'
    if ARGV[at + 6] ~= '' then
      spread(ARGV[at + 6])
    end
    local fields = id .. ' ' .. int(attempt) .. ' ' .. int(crashes) .. ' ' .. nonce
    local kind = outcome
    if cancels[i] and (outcome == 'retry' or outcome == 'snooze') then
      kind = 'cancel'
    end
    if kind == 'ack' then
      unlease(id)
      finish(id, key_of(id, lane), 'succeeded')
      event('succeeded', fields .. '\n' .. detail)
      tally('succeeded')
    elseif kind == 'cancel' then
      unlease(id)
      finish(id, key_of(id, lane), true)
      event('cancelled', fields .. '\n' .. detail)
      tally('cancelled')
    elseif kind == 'fail' then
      unlease(id)
      release(id, key_of(id, lane))
      gather('HDEL', k_runs, id)
      gather('ZADD', k_failed, int(now), id)
      event('failed', fields .. '\n' .. detail)
      tally('failed')
    elseif kind == 'crash' then
      local fate = crash(id, attempt, crashes + 1, nonce, key_of(id, lane), max_crashes, cancels[i])
      if fate == 'again' then
        back(id, attempt - 1, crashes + 1, lane, now)
        event('crashed', id .. ' ' .. int(attempt) .. ' ' .. int(crashes + 1) .. ' ' .. nonce .. ' ' .. int(now))
      end
      tally('crashed')
      if fate == 'failed' then
        tally('failed')
      end
    elseif kind == 'retry' then
      back(id, attempt, crashes, lane, now + delay)
      event('retried', fields .. ' ' .. int(now + delay) .. '\n' .. detail)
      tally('retried')
    else
      back(id, attempt - 1, crashes, lane, now + delay)
      event('snoozed', fields .. ' ' .. int(now + delay) .. '\n' .. detail)
      tally('snoozed')
    end
  end
end

flush()
cap_tombstones()
local minute = int(math.floor(now / 60000)) .. ':'
for kind, n in pairs(count) do
  redis.pcall('HINCRBY', k_stats, minute .. kind, n)
end
write_spread(RAN, count)
if earliest then
  wake_for(earliest)
end
publish()
return reply
