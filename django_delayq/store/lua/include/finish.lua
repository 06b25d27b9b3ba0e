-- How a job leaves: its traces go in one place, so that no script forgets one. Needs begin and bulk, and the keys
-- jobs runs leases cancels progress keys finished.
local TOMBSTONES = 200000 -- about 90 bytes each; tidy drops those older than an hour

-- Frees the business key, if the job still holds it.
local function release(id, key)
  if key ~= '' and redis.call('HGET', k_keys, key) == id then
    redis.call('HDEL', k_keys, key)
  end
end

-- Takes the job off its lease. Mostly nobody has asked to cancel anything or told of progress, and that is cheap to know.
local noted
local function unlease(id)
  gather('ZREM', k_leases, id)
  if noted == nil then
    noted = redis.call('EXISTS', k_cancels, k_progress) > 0
  end
  if noted then
    gather('HDEL', k_cancels, id)
    gather('HDEL', k_progress, id)
  end
end

-- The score of a tombstone: ms of the end, half a ms more for a job that was cancelled, and a quarter more for one that succeeded: by
-- that requeue knows them before the mirror does. `how`: true for cancelled, 'succeeded', or nil.
local tombstones = {succeeded = int(now) .. '.25', [true] = int(now) .. '.5'}
local function tombstone(how)
  return how and tombstones[how] or int(now)
end

-- Removes the job altogether and leaves a tombstone, so that a late re-send of `schedule` is recognised.
local function finish(id, key, how)
  release(id, key)
  gather('HDEL', k_jobs, id)
  gather('HDEL', k_runs, id)
  gather('ZADD', k_finished, tombstone(how), id)
end

local function cap_tombstones()
  local extra = redis.call('ZCARD', k_finished) - TOMBSTONES
  if extra > 0 then
    redis.call('ZREMRANGEBYRANK', k_finished, 0, extra - 1)
  end
end
