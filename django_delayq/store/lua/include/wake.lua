-- Waking idle movers. `armed` in meta is the moment when the timer owner wakes by itself (at most a second ahead), or the
-- earlier date for which a token was pushed since; it exists only while a mover is idle. See timer_election.lua.
local GRACE = 500 -- ms after which a timer owner that did not return counts as lost

-- At most four tokens wait: more would only cause useless calls.
local function push_token()
  local waiting = redis.pcall('LLEN', k_wake)
  if type(waiting) ~= 'number' then -- not a list: invalid
    redis.call('UNLINK', k_wake)
    waiting = 0
  end
  if waiting < 4 then
    redis.pcall('LPUSH', k_wake, '1') -- without a token, the timer owner checks within a second
  end
end

-- A job has become due at `due` (nil: none has): wakes a mover if that is before the timer owner wakes, or if the timer owner is late.
-- `armed`: the value of meta, if the caller has it.
local function wake_for(due, armed)
  if due and armed == nil then
    armed = redis.call('HGET', k_meta, 'armed')
  end
  if not due or not armed then
    return
  end
  armed = tonumber(armed) or math.huge
  if due < armed then
    redis.call('HSET', k_meta, 'armed', int(due))
    push_token()
  elseif now > armed + GRACE then
    push_token()
  end
end
