-- restore: nothing -> scheduled or running, from the row; nothing -> running, adopted by the worker that holds it
-- keys: jobs high normal low runs leases cancels progress keys failed finished events wake meta stats asks names holders blocked waiters firsts
-- include: begin bulk runs priority_bands nowhere tombstone asks fair_words words lines concurrency_name wake finish epoch unique_key
-- ARGV: now by why, generation for a store without one, epoch, progress of rows to note (who done total; '' none), then per job
--   (at most 200): id record attempt crashes fence due delay unsure begun asks first name
--   fence: that of a worker's run; '' for a row. All are of one kind
--   begun: for a running row: 'run', or 'cancel' if that was requested. The job is restored with a lease and without a fence: the worker
--     that runs it can adopt it, and no other starts it before the lease expires; '' for all others
--   epoch: for rows, the one known before they were read, generation:server, with the last confirmed server; for runs, that of their
--     claims
--   asks: the poll count, see asks.lua; first: the first date of a row with `at_most`, otherwise ''; name: in the format of schedule
--   attempt, crashes: for a row its previous ones, for a run its current ones
--   date: due, but at least delay ms from Redis's now; for a run, the end of its lease
--   unsure: for a waiting row that is overdue, the ms for which a worker may still hold it, see epoch.lua; 0 for all others
-- Returns the epoch, in the form of rows, or in that of claims for runs and without jobs; then per job: restored, there (it exists),
--   finished (a tombstone, or failed), merged (another unfinished job holds its key), epoch (the store is in another epoch: nothing is
--   written); for runs: adopted (it runs under this fence, now or since before), finished, lost (another claim has it, or it continued
--   without this one; or it has ended, and the tombstone is gone), wait (a sweep is running: ask again).
-- A run whose key another job has taken meanwhile continues without the key.
-- Errors before any write: BADRECORD n. Redis refuses rows at maxmemory, like schedule, but not adoptions.
-- O(log N) per job.
local new, known, progress = ARGV[4], ARGV[5], ARGV[6]
local STRIDE, FIRST = 12, 7
local items = (#ARGV - FIRST + 1) / STRIDE
local ids, parsed = {}, {}
for i = 1, items do
  local at = FIRST + (i - 1) * STRIDE
  local id, text = ARGV[at], ARGV[at + 1]
  local band, durable, _, key = header(text)
  if not band then
    return redis.error_reply('BADRECORD ' .. i)
  end
  ids[i], parsed[i] = id, {text = text, band = band, durable = durable, key = key}
end
local FENCE = 4 -- its offset from the id
local held = (ARGV[FIRST + FENCE] or '') ~= ''
if held then
  redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
end
local generation, confirmed, rolled = values_of(k_meta, 'generation', 'server', 'rolled')
local epoch = (generation or '') .. ':' .. (confirmed or '')
local reply = {epoch}

local function all(answer)
  for i = 1, items do
    reply[i + 1] = answer
  end
  return reply
end

if items > 0 and not held and known ~= epoch then
  return all('epoch')
end
if not generation then
  generation = new
  redis.call('HSET', k_meta, 'generation', generation)
end
if held or items == 0 then
  epoch = generation .. ':' .. server()
  reply[1] = epoch
end
if items == 0 then
  return reply
elseif held and rolled == 'sweep' then
  return all('wait')
elseif progress ~= '' then
  redis.call('HSET', k_meta, 'restoring', int(now) .. ' ' .. progress)
end
local count, earliest = 0, nil
local latest, unsure_until = 0, 0 -- of restored jobs that are overdue
local records = redis.call('HMGET', k_jobs, unpack(ids))
local runs = redis.call('HMGET', k_runs, unpack(ids))
local ended = redis.call('ZMSCORE', k_finished, unpack(ids))
local failed = redis.call('ZMSCORE', k_failed, unpack(ids))

-- Takes the key for this job. Returns '' or the job that holds it.
local function take_key(id, key)
  if key == '' then
    return ''
  end
  local other = holder_of(key)
  if other and other ~= id then
    return other
  end
  redis.call('HSET', k_keys, key, id)
  return ''
end

local function tell(id, date, attempt, crashes, fence, body)
  event('restored', id .. ' ' .. int(date) .. ' ' .. int(attempt) .. ' ' .. int(crashes) .. ' ' .. (fence == '' and '-' or fence) .. body)
  count = count + 1
end

-- A running job, according to its worker or row, holds its name even if another one does: after a loss two may run.
local function keep_name(id, name, runs)
  if name and runs then
    redis.call('ZADD', k_holders, 0, name .. '\0' .. id)
  end
end

-- Notes the poll count. A job that polled always has a value in `runs`, too.
local function note_asks(id, asks)
  if asks > 0 then
    gather('HSET', k_asks, id, int(asks))
  end
end

-- A run that is missing in Redis, or differs. The one that has progressed further counts.
local function adopt(id, here, record, attempt, crashes, fence, date, run, asks, said)
  local a, c, _, holder = run_of(run)
  a, c, holder = a or 0, c or 0, holder or ''
  if holder == fence then
    gather('ZADD', k_leases, int(date), id)
    return 'adopted'
  elseif known == epoch then
    return 'lost' -- nothing was lost here: the job continued, or it ended and its tombstone was removed
  elseif here and (c > crashes or a > attempt or (a == attempt and not (holder ~= '' and c < crashes))) then
    return 'lost'
  end
  local band, durable, key, name = record.band, record.durable, record.key, nil
  if not here then
    redis.call('HSET', k_jobs, id, record.text)
    name = give_name(id, said)
  elseif lines then
    name = lines.of(id)
  end
  if key ~= '' and take_key(id, key) == '' then
    band = string.upper(band)
  end
  if lines then
    lines.withdraw(id, band)
  end
  gather('ZREM', BANDS[band], id)
  keep_name(id, name, true)
  gather('HSET', k_runs, id, int(attempt) .. ':' .. int(crashes) .. ':' .. band .. ':' .. fence)
  gather('ZADD', k_leases, int(date), id)
  note_asks(id, asks)
  tell(id, date, attempt, crashes, fence, (here or durable) and '' or '\n' .. record.text)
  return 'adopted'
end

local function bring_back(id, record, attempt, crashes, date, begun, asks, first, said)
  local band, durable, key = record.band, record.durable, record.key
  local other = take_key(id, key)
  if other ~= '' then
    gather('ZADD', k_finished, tombstone('displaced'), id)
    event('merged', id .. ' ' .. other .. ' restore')
    return 'merged'
  end
  if key == '' and not lines then
    gather('HSET', k_jobs, id, record.text)
  else
    redis.call('HSET', k_jobs, id, record.text) -- at once, for the next job of this key or fair word
  end
  note_asks(id, asks)
  if first ~= '' then
    redis.call('HSETNX', k_firsts, id, first) -- Redis may still have a date by its own clock
  end
  keep_name(id, give_name(id, said), begun ~= '')
  if attempt > 0 or crashes > 0 or begun ~= '' or asks > 0 then
    gather('HSET', k_runs, id, int(attempt) .. ':' .. int(crashes) .. ':' .. (key == '' and band or string.upper(band)) .. ':')
  end
  local wakes = date
  if lines and begun == '' then
    wakes = lines.put(id, band, date, gather)
  else
    gather('ZADD', begun ~= '' and k_leases or BANDS[band], int(date), id)
  end
  if begun == 'cancel' then
    redis.call('HSETNX', k_cancels, id, by)
  end
  earliest = wakes and math.min(earliest or wakes, wakes) or earliest
  tell(id, date, attempt, crashes, '', (begun ~= '' and ' running' or '') .. (durable and '' or '\n' .. record.text))
  return 'restored'
end

for i = 1, items do
  local record = parsed[i]
  local id, _, attempt, crashes, fence, due, delay, unsure, begun, asks, first, said = unpack(ARGV, FIRST + (i - 1) * STRIDE, FIRST + i * STRIDE - 1)
  attempt, crashes, asks = tonumber(attempt), tonumber(crashes), tonumber(asks)
  local date = math.max(tonumber(due), now + tonumber(delay))
  if ended[i] or failed[i] then
    reply[i + 1] = 'finished'
  elseif held then
    reply[i + 1] = adopt(id, records[i], record, attempt, crashes, fence, date, runs[i], asks, said)
  else
    local there = records[i] and not is_nowhere(id, record.band)
    reply[i + 1] = there and 'there' or bring_back(id, record, attempt, crashes, date, begun, asks, first, said)
    if reply[i + 1] == 'restored' and unsure ~= '0' and tonumber(due) <= now then
      latest, unsure_until = math.max(latest, date), math.max(unsure_until, now + tonumber(unsure))
    end
  end
end
flush()
if lines then
  wake_for(lines.call())
end
if latest ~= 0 then
  redis.call('HSET', k_meta, 'brought_back', int(latest) .. ' ' .. int(unsure_until))
end
cap_tombstones()
if count ~= 0 then
  redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':restored', count)
end
if earliest then
  wake_for(earliest)
end
publish()
return reply
