-- How often a job has asked and heard "not yet": the hash `asks`, id -> number. A hash of its own, since releases before this one take a
-- value of `runs` that says more than theirs for none of ours; of this one they know nothing, and leave it alone. Who has asked always has a
-- value in `runs`, so only for those that have one it is looked here. Needs the key asks.

-- Whether any job of the queue has asked; mostly none has, and that is cheap to know. A script that has looked sets it.
local asks_there
local function any_asks()
  if asks_there == nil then
    asks_there = redis.call('EXISTS', k_asks) == 1
  end
  return asks_there
end

local function asks_of(id)
  local found = any_asks() and redis.call('HGET', k_asks, id)
  return found and #found < 10 and tonumber(string.match(found, '^%d+$')) or 0 -- else nobody of us has written it
end
