-- restore: nothing -> scheduled (from its row) | running (adopted by the worker that holds it)
-- keys: jobs high normal low runs leases cancels progress keys failed finished events wake meta stats
-- include: begin bulk runs lanes finish wake ground holder
-- ARGV: now by why, generation to give a store without one, ground of the claims ('' for rows), rolled ('1': the data here is older
--   than the rows, whose word counts; 'noted': if that is noted here still), progress to note ('' none), then per job (at most 200): id record attempt crashes fence due delay requeued
--   attempt, crashes: behind it when fence is '', else those of the run that is held under this fence
--   date: due, but not before delay ms from Redis' now; of a run, the end of its lease
--   requeued: '1' of a row that is unfinished since a requeue after the end that is noted here, or ''; counts only when rolled
--   record: or a word, failed, succeeded or cancelled: its row is finished, and the job is dropped if it is here (only when rolled)
-- Returns the ground ('' to a call without jobs while another restore is at work), then per job: restored, adopted (it runs under this fence, now or since before), there (already, or ahead of the
--   row), finished (a tombstone, or failed; unless it was requeued, which none is that has succeeded), lost (another claim has it, or it went on without this one; or it has ended, and that was
--   forgotten), merged (another unfinished job holds its key), dropped.
-- A run whose key another job has taken meanwhile goes on without the key.
-- Errors before any write: BADRECORD n. Rows, like schedule, are refused at maxmemory; adoption is not.
-- O(log N) per job.
local offer, claimed, progress = ARGV[4], ARGV[5], ARGV[7]
local STRIDE = 8
local ENDS = {failed = false, succeeded = 'succeeded', cancelled = true} -- by which a tombstone tells them, see finish.lua
local items = (#ARGV - 7) / STRIDE
local ids, parsed = {}, {}
for i = 1, items do
  local at = 8 + (i - 1) * STRIDE
  ids[i] = ARGV[at]
  if ENDS[ARGV[at + 1]] == nil then
    local lane, durable, _, key = header(ARGV[at + 1])
    if not lane then
      return redis.error_reply('BADRECORD ' .. i)
    end
    parsed[i] = {lane, durable, key}
  end
end
if claimed ~= '' then
  redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
end
local rolled = ARGV[6] == '1' or (ARGV[6] == 'noted' and redis.call('HGET', k_meta, 'rolled'))
local generation = redis.call('HGET', k_meta, 'generation')
if not generation then
  generation = offer
  redis.call('HSET', k_meta, 'generation', generation)
end
if progress ~= '' then
  local at, who = string.match(redis.call('HGET', k_meta, 'restoring') or '', '^(%d+) (%S+)')
  if items == 0 and at and who ~= 'restore' and who ~= string.match(progress, '^%S+') and math.abs(now - tonumber(at)) < 5000 then
    return {''} -- another restore is at work
  end
  redis.call('HSET', k_meta, 'restoring', int(now) .. ' ' .. progress)
end
local ground = generation .. ':' .. server()
local reply, count, earliest = {ground}, 0, nil
if items == 0 then
  return reply
end
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

local function run(id, attempt, crashes, lane, fence, date)
  gather('ZREM', LANES[lane], id)
  gather('HSET', k_runs, id, int(attempt) .. ':' .. int(crashes) .. ':' .. lane .. ':' .. fence)
  gather('ZADD', k_leases, int(date), id)
end

local function wait(id, attempt, crashes, lane, date)
  if attempt == 0 and crashes == 0 then
    gather('HDEL', k_runs, id)
  else
    gather('HSET', k_runs, id, int(attempt) .. ':' .. int(crashes) .. ':' .. lane .. ':')
  end
  gather('ZADD', LANES[lane], int(date), id)
  if not earliest or date < earliest then
    earliest = date
  end
end

-- A run that is not in Redis, or not as this one. Whoever went on from where this run stands has the word.
local function adopt(id, record, here, mine, theirs, date)
  local attempt, crashes, fence = unpack(mine)
  local a, c, held = unpack(theirs)
  if held == fence then
    gather('ZADD', k_leases, int(date), id)
    return 'adopted'
  end
  if claimed == ground then
    return 'lost' -- nothing has been lost here: the job went on, or it has ended and its tombstone has had its time
  end
  if here and (c > crashes or a > attempt or (a == attempt and not (held ~= '' and c < crashes))) then
    return 'lost'
  end
  local lane, durable, key = unpack(record)
  if not here then
    redis.call('HSET', k_jobs, id, record[4])
  end
  if key ~= '' and take_key(id, key) == '' then
    lane = string.upper(lane)
  end
  run(id, attempt, crashes, lane, fence, date)
  tell(id, date, attempt, crashes, fence, (here or durable) and '' or '\n' .. record[4])
  return 'adopted'
end

-- Data that was rolled back: the row has seen more than Redis remembers.
local function correct(id, record, attempt, crashes, theirs, date)
  local a, c, held, letter = unpack(theirs)
  local lane = letter or (record[3] ~= '' and string.upper(record[1]) or record[1])
  if held ~= '' then
    if a > attempt then
      return 'there'
    end
  elseif a > attempt or (a == attempt and c >= crashes and tonumber(redis.call('ZSCORE', LANES[lane], id) or '') == date) then
    return 'there'
  end
  unlease(id)
  wait(id, attempt, math.max(c, crashes), lane, date)
  tell(id, date, attempt, math.max(c, crashes), '', '')
  return 'restored'
end

local function drop(id, here, how)
  local lane, _, _, key = header(here)
  unlease(id)
  gather('ZREM', LANES[lane or 'n'], id)
  finish(id, key or '', how)
  event('dropped', id)
  return 'dropped'
end

local function fate(i)
  local at, id, record, here = 8 + (i - 1) * STRIDE, ids[i], parsed[i], records[i]
  local attempt, crashes, fence = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4]
  local date = math.max(tonumber(ARGV[at + 5]), now + tonumber(ARGV[at + 6]))
  local over = ended[i] or failed[i]
  local succeeded = ended[i] and tonumber(ended[i]) % 1 == 0.25 -- see finish.lua; requeue refuses those
  if over and not succeeded and rolled and record and fence == '' and ARGV[at + 7] == '1' then
    redis.call('ZREM', k_finished, id) -- at once: what follows may gather the opposite
    redis.call('ZREM', k_failed, id)
    redis.call('HDEL', k_jobs, id)
    redis.call('HDEL', k_runs, id)
    here = false
  elseif over then
    return 'finished'
  end
  if not record then
    return here and rolled and drop(id, here, ENDS[ARGV[at + 1]]) or 'there'
  end
  record[4] = ARGV[at + 1]
  local a, c, letter, held = run_of(runs[i])
  local theirs = {a or 0, c or 0, held or '', letter}
  if fence ~= '' then
    return adopt(id, record, here, {attempt, crashes, fence}, theirs, date)
  end
  if here then
    return rolled and correct(id, record, attempt, crashes, theirs, date) or 'there'
  end
  local lane, durable, key = unpack(record)
  local other = take_key(id, key)
  if other ~= '' then
    gather('ZADD', k_finished, tombstone(true), id)
    event('merged', id .. ' ' .. other .. ' restore')
    return 'merged'
  end
  if key == '' then
    gather('HSET', k_jobs, id, record[4])
  else
    redis.call('HSET', k_jobs, id, record[4]) -- at once, for the next job of this key
    lane = string.upper(lane)
  end
  wait(id, attempt, crashes, lane, date)
  tell(id, date, attempt, crashes, '', durable and '' or '\n' .. record[4])
  return 'restored'
end

for i = 1, items do
  reply[i + 1] = fate(i)
end
flush()
cap_tombstones()
if count > 0 then
  redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':restored', count)
end
if earliest then
  wake_for(earliest)
end
publish()
return reply
