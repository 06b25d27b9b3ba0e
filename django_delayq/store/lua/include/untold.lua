-- Of how many jobs the events tell that no mirror has taken in: of one per entry, and of `surplus` in meta beside. `publish` counts it up,
-- but only where a call tells of more than one job, so that most calls pay nothing; trim counts down what its mirror has read. An entry
-- has at most 400 items: that bounds what a mirror that died between its commit and its trim has left wrong, and without an entry it is 0.
-- Needs begin, and the key meta.
local MOST_BESIDE = 399

local function surplus_of(counted, entries)
  local number = tonumber(counted) or 0
  if number ~= number then -- somebody may have written "nan"
    number = 0
  end
  return math.max(0, math.min(number, entries * MOST_BESIDE))
end

-- Whether that many (0: no limit) are behind.
local function is_behind(counted, limit)
  if limit <= 0 then
    return false
  end
  local entries = redis.call('XLEN', k_events)
  return entries + surplus_of(counted, entries) >= limit
end
