-- schedule: nothing -> scheduled
-- keys: jobs high normal low runs keys failed finished events wake meta stats
-- include: begin bulk lanes wake holder
-- ARGV: now by why, generation to give a new store, most events allowed (0: no limit), then per job (at most 200):
--   id record policy due delay        due: ms, or '' and delay: ms from Redis' now
-- Returns per job: status holder due. status: created, again (a live job with this id: a re-send), finished,
--   cancelled (tombstones), kept, moved, replaced, taken (policy error), running (replace refused: the holder runs); holder: the id that holds the key; due: its
--   date as asked for, or as it is; 0 of a job that was in already, and has begun to run or has ended.
-- Errors before any write: BADRECORD n; EVENTSFULL. The only script that Redis refuses at maxmemory: its first write
--   must stay one that needs memory (HSET).
-- O(log N) per job.
local STRIDE = 5
local items = (#ARGV - 5) / STRIDE
local limit = tonumber(ARGV[5])
if limit > 0 and redis.call('XLEN', k_events) >= limit then
  return redis.error_reply('EVENTSFULL the mirror is ' .. ARGV[5] .. ' entries behind')
end
if items == 0 then
  return {}
end
local lanes, durables, keys, ids, seen = {}, {}, {}, {}, {}
for i = 1, items do
  ids[i] = ARGV[6 + (i - 1) * STRIDE]
  local record = ARGV[6 + (i - 1) * STRIDE + 1]
  local lane, durable, _, key = header(record)
  if not lane then
    return redis.error_reply('BADRECORD ' .. i)
  end
  lanes[i], durables[i], keys[i] = lane, durable, key
end
local meta = redis.call('HMGET', k_meta, 'generation', 'armed')
if not meta[1] then
  redis.call('HSET', k_meta, 'generation', ARGV[4])
end

local reply, created, earliest = {}, 0, nil

local function note(due)
  if not earliest or due < earliest then
    earliest = due
  end
end

-- The lane and date of a waiting holder; nil while it runs.
local function waiting(holder)
  local record = redis.call('HGET', k_jobs, holder)
  local lane = header(record)
  return lane and redis.call('ZSCORE', LANES[lane], holder), lane
end

-- Decides about a key that another unfinished job holds. Returns the status; 'free' when it may be taken.
local function contest(id, holder, key, policy, due)
  if policy == 'keep' then
    return 'kept'
  elseif policy == 'error' then
    return 'taken'
  end
  local date, lane = waiting(holder)
  if not date then
    return policy == 'replace' and 'running' or 'kept'
  end
  date = tonumber(date)
  if policy == 'replace' then
    redis.call('ZREM', LANES[lane], holder)
    redis.call('HDEL', k_keys, key)
    redis.call('HDEL', k_jobs, holder)
    redis.call('HDEL', k_runs, holder)
    redis.call('ZADD', k_finished, int(now) .. '.5', holder) -- cancelled, see finish.lua
    event('cancelled', holder .. ' 0 0 -\n{"m":"replaced by ' .. id .. '"}')
    return 'free'
  end
  if (policy == 'earliest' and due < date) or (policy == 'latest' and due > date) then
    redis.call('ZADD', LANES[lane], int(due), holder)
    event('rescheduled', holder .. ' ' .. int(due))
    note(due)
    return 'moved'
  end
  return 'kept'
end

-- What is there is asked for all jobs at once, and all are written at once. From the first on that has a key, or comes twice in
-- this call, each is looked up and written by itself: it may meet what this call has just written. So is a job that comes alone.
local records, ends = redis.call('HMGET', k_jobs, unpack(ids)), redis.call('ZMSCORE', k_finished, unpack(ids))
local together = true
local write = items > 1 and gather or redis.call
for i = 1, items do
  local at = 6 + (i - 1) * STRIDE
  local id, record, policy, date = ids[i], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local due = tonumber(date)
  if not due then
    due = now + tonumber(ARGV[at + 4])
    date = int(due)
  end
  local lane, durable, key = lanes[i], durables[i], keys[i]
  local status, holder = 'created', id
  local known, ended = records[i], ends[i]
  if together and (key ~= '' or seen[id]) then
    together = false
    flush()
    write = redis.call
  end
  if not together then
    known, ended = redis.call('HEXISTS', k_jobs, id) == 1, redis.call('ZSCORE', k_finished, id)
  end
  seen[id] = true
  if known then
    status = redis.call('ZSCORE', k_failed, id) and 'finished' or 'again'
    due = redis.call('HEXISTS', k_runs, id) == 0 and tonumber(redis.call('ZSCORE', LANES[lane], id) or '') or 0
    date = int(due)
  elseif ended then
    status, date = tonumber(ended) % 1 == 0.5 and 'cancelled' or 'finished', '0' -- see finish.lua
  else
    if key ~= '' then
      local other = holder_of(key)
      if other then
        status = contest(id, other, key, policy, due)
        if status == 'free' then
          status = 'replaced'
        else
          holder = other
        end
      end
    end
    if holder == id then
      write('HSET', k_jobs, id, record)
      write('ZADD', LANES[lane], date, id)
      if key ~= '' then
        write('HSET', k_keys, key, id)
      end
      local fields = id .. ' ' .. date .. ' ' .. lane
      event('scheduled', durable and fields or (fields .. '\n' .. record))
      created = created + 1
      note(due)
    else
      write('ZADD', k_finished, int(now), id)
      event('merged', id .. ' ' .. holder .. ' ' .. policy)
    end
  end
  local r = (i - 1) * 3
  reply[r + 1], reply[r + 2], reply[r + 3] = status, holder, date
end
flush()

if created > 0 then
  redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':scheduled', created)
end
if earliest then
  wake_for(earliest, meta[2])
end
publish()
return reply
