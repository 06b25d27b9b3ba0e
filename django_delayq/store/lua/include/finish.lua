-- How a job leaves: its traces go in one place, so that no script forgets one. Needs begin, bulk, asks, names and
-- tombstone, and the keys jobs runs leases cancels progress keys finished.
local TOMBSTONES = 200000 -- about 90 bytes each, of what the database has heard; tidy drops those older than an hour

-- Frees the business key, if the job still holds it.
local function release(id, key)
  if key ~= '' and redis.call('HGET', k_keys, key) == id then
    gather('HDEL', k_keys, key)
  end
end

-- Takes the job off its lease, and its name with it. Mostly nobody has asked to cancel anything or told of progress, and that is cheap to know.
local noted
local function unlease(id)
  gather('ZREM', k_leases, id)
  if named then
    free_name(id)
  end
  if noted == nil then
    noted = redis.call('EXISTS', k_cancels, k_progress) > 0
  end
  if noted then
    gather('HDEL', k_cancels, id)
    gather('HDEL', k_progress, id)
  end
end

-- What the job has behind it goes.
local function unrun(id)
  gather('HDEL', k_runs, id)
  if asks_there ~= false and any_asks() then
    gather('HDEL', k_asks, id)
  end
end

-- Removes the job altogether and leaves a tombstone, so that a late re-send of `schedule` is recognised. `how`: see tombstone.lua.
local function finish(id, key, how)
  release(id, key)
  gather('HDEL', k_jobs, id)
  unrun(id)
  if named then
    gather('HDEL', k_names, id)
  end
  gather('ZADD', k_finished, tombstone(how), id)
end

-- Of what the database has heard, the oldest go. Of the others nothing else tells that they have ended; MIRROR_MAX_EVENTS bounds them.
local function cap_tombstones()
  if redis.call('ZCARD', k_finished) <= TOMBSTONES then
    return
  end
  local mirrored = string.match(redis.call('HGET', k_meta, 'mirrored') or '', '^%d+') or '0'
  local extra = redis.call('ZCOUNT', k_finished, '-inf', '(' .. mirrored) - TOMBSTONES
  if extra > 0 then
    redis.call('ZREMRANGEBYRANK', k_finished, 0, math.min(extra, 1000) - 1) -- a call adds 200 at most
  end
end
