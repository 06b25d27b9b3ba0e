-- Waking idle movers. `armed` in meta is the moment at which the timer owner wakes by itself (a second ahead at most), or the
-- earlier date for which a token was pushed since; it exists only while a mover is idle. See timer_election.lua.
local GRACE = 500 -- ms after which a timer owner that did not come back counts as gone

-- At most four tokens wait: more would only make movers ask in vain.
local function push_token()
  local waiting = redis.pcall('LLEN', k_wake)
  if type(waiting) ~= 'number' then -- no list: not ours
    redis.call('UNLINK', k_wake)
    waiting = 0
  end
  if waiting < 4 then
    redis.pcall('LPUSH', k_wake, '1') -- without a token the timer owner looks within a second
  end
end

-- A job has become due at `due` (nil: none has): wakes a mover if that is earlier than what the timer owner sleeps for, or if that has
-- not come when it should. `armed`, if the caller has it.
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
