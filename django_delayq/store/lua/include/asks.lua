-- The poll count: how often a job has polled and got "not yet", in the hash `asks`, id -> number. A job that has polled always has a value
-- in `runs`, so this hash is only read for such jobs. Needs the key asks.

-- Whether any job of the queue has polled. Usually none has, and this check is cheap. A script that has checked sets it.
local asks_there
local function any_asks()
  if asks_there == nil then
    asks_there = redis.call('EXISTS', k_asks) == 1
  end
  return asks_there
end

local function asks_of(id)
  local found = any_asks() and redis.call('HGET', k_asks, id)
  return found and #found < 10 and tonumber(string.match(found, '^%d+$')) or 0 -- otherwise the value is invalid
end
