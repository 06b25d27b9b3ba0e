-- Who sleeps for the next date: of all idle movers one timer owner until then, and one backup a little longer. Both ask at least once in
-- SAFETY. The others ask seldom: they are called by tokens, and are there in case that owner and backup have vanished at once. So 60 idle
-- workers make 7 calls per job, not 61, and 100 make 8 calls a second while nothing happens, not 100. Needs begin, bands and wake, and the
-- key meta.
local SAFETY = 1000 -- ms; the longest sleep of owner and backup, and what a lost wake token costs
local SELDOM = 16000 -- ms; that of the others, which each of them makes longer or shorter by up to an eighth

-- The earliest date in the schedule; nil when nothing waits.
local function first_date()
  local first
  for _, letter in ipairs(BAND_ORDER) do
    local date = tonumber(redis.call('ZRANGE', BANDS[letter], 0, 0, 'WITHSCORES')[2])
    if date then
      first = math.min(first or date, date)
    end
  end
  return first
end

-- Whether two workers are on one host, as their names say: what takes the host away takes both.
local function together(one, other)
  return string.match(one, '^[^:]*') == string.match(other, '^[^:]*')
end

-- A worker that has just claimed: is it the owner, the backup or one of the others? Returns the ms that it sleeps.
--   full: it got as much as it wanted; next_date: when it could go on (nil: nobody knows); more: that is now
--   owner, owner_until, backup, backup_until, others_until: as meta has them. `armed` there is the moment at which the owner wakes by
--   itself, or the earlier date for which a token was pushed: an earlier job needs a token, a later one does not.
-- An owner that is busy has its backup for its heir. An owner without backup calls one of the others, once a second, as long as any may
-- sleep; a backup on the owner's host gives way to one that is elsewhere. So whoever is lost alone is noticed as if all asked once a second.
local function elect(worker, full, next_date, more, owner, owner_until, backup, backup_until, others_until)
  owner_until, backup_until, others_until = tonumber(owner_until) or 0, tonumber(backup_until) or 0, tonumber(others_until) or 0
  local another = owner and owner ~= worker and owner_until > now -- somebody else sleeps for the next date
  local known = backup_until > now and backup_until <= now + 2 * SAFETY
  local heir = known and backup ~= worker and backup ~= '' and backup -- the backup, if it is somebody else who sleeps
  local sleep = 0
  if full then
    -- Not idle any more. Hands the timer over; and calls an idle mover if there is more to do before the owner wakes.
    if owner == worker then
      if heir then
        redis.call('HSET', k_meta, 'timer', heir, 'timer_until', int(backup_until), 'armed', int(backup_until - GRACE))
        redis.call('HDEL', k_meta, 'backup', 'backup_until')
      else
        redis.call('HDEL', k_meta, 'timer', 'timer_until', 'armed')
      end
      push_token()
    elseif not another or more or (next_date and next_date < owner_until - GRACE) then
      push_token() -- there is no owner, or it would sleep past the next date
    end
    if backup == worker then
      redis.call('HDEL', k_meta, 'backup', 'backup_until')
    end
  else
    local ahead = math.min((next_date or now + SAFETY) - now, SAFETY) -- what is due by now has been claimed, or it is full
    if not another or now + ahead < owner_until - GRACE then
      sleep, another = ahead, false
      redis.call('HSET', k_meta, 'timer', worker, 'timer_until', int(now + sleep + GRACE), 'armed', int(now + sleep))
      if not heir and others_until > now and others_until <= now + 2 * SELDOM and (backup ~= '' or not known) then
        redis.call('HSET', k_meta, 'backup', '', 'backup_until', int(now + SAFETY)) -- it has been called
        push_token()
      elseif backup == worker then
        redis.call('HDEL', k_meta, 'backup', 'backup_until')
      end
    elseif not heir or (together(heir, owner) and not together(worker, owner)) then
      sleep = math.min(ahead + 25, SAFETY)
      redis.call('HSET', k_meta, 'backup', worker, 'backup_until', int(now + sleep + GRACE))
    else
      sleep = SELDOM
      redis.call('HSET', k_meta, 'others_until', int(now + SELDOM * 9 / 8 + GRACE))
    end
  end
  if another and not more then
    redis.call('HSET', k_meta, 'armed', int(owner_until - GRACE)) -- what the tokens were pushed for has been taken
  end
  return sleep
end
