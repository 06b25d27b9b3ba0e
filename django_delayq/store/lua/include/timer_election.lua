-- Who sleeps for the next date: of all idle movers one timer owner until then, one backup a little longer, the others for the safety
-- poll. So 60 idle workers make 7 calls per job, not 61. Needs begin, lanes and wake, and the key meta.
local SAFETY = 1000 -- ms; the longest sleep, and what a lost wake token costs
local GRACE = 500 -- ms after which a timer owner that did not come back counts as gone

-- The earliest date in the schedule; nil when nothing waits.
local function first_date()
  local first
  for _, letter in ipairs(LANE_ORDER) do
    local date = tonumber(redis.call('ZRANGE', LANES[letter], 0, 0, 'WITHSCORES')[2])
    if date then
      first = math.min(first or date, date)
    end
  end
  return first
end

-- A worker that has just claimed: is it the owner, the backup or one of the others? Returns the ms that it sleeps.
--   full: it got as much as it wanted; next_date: when it could go on (nil: nobody knows); more: that is now
--   owner, owner_until, backup, backup_until: as meta has them. `armed` there is the moment at which the owner wakes by itself, or the
--   earlier date for which a token was pushed: an earlier job needs a token, a later one does not.
local function elect(worker, full, next_date, more, owner, owner_until, backup, backup_until)
  owner_until, backup_until = tonumber(owner_until) or 0, tonumber(backup_until) or 0
  local another = owner and owner ~= worker and owner_until > now -- somebody else sleeps for the next date
  local sleep = 0
  if full then
    -- Not idle any more. Hands the timer over; and calls an idle mover if there is more to do before the owner wakes.
    if owner == worker then
      redis.call('HDEL', k_meta, 'timer', 'timer_until', 'armed')
      push_token()
    elseif not another or more or (next_date and next_date < owner_until - GRACE) then
      push_token() -- there is no owner, or it would sleep past the next date
    end
  else
    local ahead = math.min((next_date or now + SAFETY) - now, SAFETY) -- what is due by now has been claimed, or it is full
    if not another or now + ahead < owner_until - GRACE then
      sleep, another = ahead, false
      redis.call('HSET', k_meta, 'timer', worker, 'timer_until', int(now + sleep + GRACE), 'armed', int(now + sleep))
      if backup == worker then
        redis.call('HDEL', k_meta, 'backup', 'backup_until')
      end
    elseif not backup or backup == worker or backup_until <= now or backup_until > now + 2 * SAFETY then
      sleep = math.min(ahead + 25, SAFETY)
      redis.call('HSET', k_meta, 'backup', worker, 'backup_until', int(now + sleep + GRACE))
    else
      sleep = SAFETY
    end
  end
  if another and not more then
    redis.call('HSET', k_meta, 'armed', int(owner_until - GRACE)) -- what the tokens were pushed for has been taken
  end
  return sleep
end
