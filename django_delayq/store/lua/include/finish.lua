-- How a job ends: all its data is removed in one place, so that no script forgets any. Needs begin, bulk, asks, lines and
-- tombstone, and the keys jobs runs leases cancels progress keys finished.
local TOMBSTONES = 200000 -- about 90 bytes each, for ends that the database has recorded; tidy removes those older than an hour

-- Frees the key, if the job still holds it.
local function release(id, key)
  if key ~= '' and redis.call('HGET', k_keys, key) == id then
    gather('HDEL', k_keys, key)
  end
end

-- Removes the job's lease, and frees its name. Usually there are no cancel requests and no progress, and checking this is cheap.
local noted
local function unlease(id)
  gather('ZREM', k_leases, id)
  if lines then
    lines.free(id)
  end
  if noted == nil then
    noted = redis.call('EXISTS', k_cancels, k_progress) > 0
  end
  if noted then
    gather('HDEL', k_cancels, id)
    gather('HDEL', k_progress, id)
  end
end

-- Removes the job's past.
local function unrun(id)
  gather('HDEL', k_runs, id)
  if asks_there ~= false and any_asks() then
    gather('HDEL', k_asks, id)
  end
end

-- Removes the job completely and leaves a tombstone, so that a repeated `schedule` is recognized. `how`: see tombstone.lua.
local function finish(id, key, how)
  release(id, key)
  gather('HDEL', k_jobs, id)
  unrun(id)
  if lines then
    gather('HDEL', k_names, id)
  end
  gather('ZADD', k_finished, tombstone(how), id)
end

-- Removes the oldest tombstones of ends that the database has recorded. Only the tombstone shows the other ends; MIRROR_MAX_EVENTS limits them.
local function cap_tombstones()
  if redis.call('ZCARD', k_finished) <= TOMBSTONES then
    return
  end
  local mirrored = string.match(redis.call('HGET', k_meta, 'mirrored') or '', '^%d+') or '0'
  local extra = redis.call('ZCOUNT', k_finished, '-inf', '(' .. mirrored) - TOMBSTONES
  if extra > 0 then
    redis.call('ZREMRANGEBYRANK', k_finished, 0, math.min(extra, 1000) - 1) -- a call adds at most 200
  end
end
