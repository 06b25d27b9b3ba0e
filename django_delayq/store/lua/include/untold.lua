-- The number of jobs in events that no mirror has read: one per entry, plus `surplus` in meta. `publish` adds to it, but only if a call
-- has more than one job, so that most calls pay nothing; trim subtracts what its mirror has read. An entry has at most 400 items, which
-- limits the error left by a mirror that died between its commit and its trim. Without entries, it is 0.
-- Needs begin, and the key meta.
local MOST_BESIDE = 399

local function surplus_of(counted, entries)
  local number = tonumber(counted) or 0
  if number ~= number then -- an invalid value can be "nan"
    number = 0
  end
  return math.max(0, math.min(number, entries * MOST_BESIDE))
end

-- Whether the mirror lags by that many jobs (0: no limit).
local function is_behind(counted, limit)
  if limit <= 0 then
    return false
  end
  local entries = redis.call('XLEN', k_events)
  return entries + surplus_of(counted, entries) >= limit
end
