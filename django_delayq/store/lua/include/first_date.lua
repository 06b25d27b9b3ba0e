-- firsts: id -> the date in ms from which `at_most` counts. Only jobs for which a call named `at_most` have one.
-- Needs begin, and the key firsts.

-- The longest time in ms after the first date, and the first date that the policy names, nil without one; nil for all other policies.
local function at_most(policy)
  local most, named_date = string.match(policy, '^latest%+(%d+)/?(%d*)')
  return tonumber(most), tonumber(named_date)
end

-- The first date of a job: as noted, or as its row has it, or now. It is never later than now, so a clock that was set back adds no time.
local function first_of(id, named_date)
  local noted = redis.call('HGET', k_firsts, id)
  noted = noted and #noted < 16 and string.match(noted, '^%d+$') -- otherwise the value is invalid
  return math.min(tonumber(noted) or named_date or now, now)
end

local function note_first(id, date)
  redis.call('HSET', k_firsts, id, int(date))
end
