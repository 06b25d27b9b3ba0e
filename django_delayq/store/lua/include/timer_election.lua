-- Elects the mover that sleeps until the next date: among all idle movers one timer owner, and one backup that sleeps a little longer. Both
-- ask at least once in SAFETY. The others ask seldom: tokens wake them, and they are needed if owner and backup are lost at once. So 60 idle
-- workers make 7 calls per job, not 61, and 100 make 8 calls a second while nothing happens, not 100. Needs begin, bands, limits and wake, and
-- the keys meta opens.
local SAFETY = 1000 -- ms; the longest sleep of owner and backup, and the cost of a lost wake token
local SELDOM = 16000 -- ms; the sleep of the others, which each varies by up to an eighth

-- The earliest date in the schedule, or at which a held job returns; nil if no job waits.
local function first_date()
  local first
  for _, letter in ipairs(BAND_ORDER) do
    local date = tonumber(redis.call('ZRANGE', BANDS[letter], 0, 0, 'WITHSCORES')[2])
    if date then
      first = math.min(first or date, date)
    end
  end
  local returns = limits and tonumber(redis.call('ZRANGE', k_opens, 0, 0, 'WITHSCORES')[2])
  if returns then
    first = math.min(first or returns, returns)
  end
  return first
end

-- Whether two workers are on one host, according to their names: the loss of the host stops both.
local function together(one, other)
  return string.match(one, '^[^:]*') == string.match(other, '^[^:]*')
end

-- Decides whether a worker that has just claimed is the owner, the backup or one of the others. Returns the ms that it sleeps.
--   full: it got as many jobs as it wanted; next_date: when it could continue (nil: unknown); more: that is now
--   owner, owner_until, backup, backup_until, others_until: as in meta. `armed` in meta is the moment when the owner wakes, or the earlier
--   date for which a token was pushed: an earlier job needs a token, a later one does not.
-- The backup replaces a busy owner. An owner without a backup calls one of the others, once a second, as long as any may sleep. A backup on
-- the owner's host is replaced by one on another host. So the loss of any single worker is noticed as if all asked once a second.
local function elect(worker, full, next_date, more, owner, owner_until, backup, backup_until, others_until)
  owner_until, backup_until, others_until = tonumber(owner_until) or 0, tonumber(backup_until) or 0, tonumber(others_until) or 0
  local another = owner and owner ~= worker and owner_until > now -- another worker sleeps until the next date
  local known = backup_until > now and backup_until <= now + 2 * SAFETY
  local heir = known and backup ~= worker and backup ~= '' and backup -- the backup, if another worker sleeps as such
  local sleep = 0
  if full then
    -- No longer idle. Hands the timer over, and calls an idle mover if there is more to do before the owner wakes.
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
    local ahead = math.min((next_date or now + SAFETY) - now, SAFETY) -- due jobs have been claimed, or it is full
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
    redis.call('HSET', k_meta, 'armed', int(owner_until - GRACE)) -- the jobs of these tokens have been claimed
  end
  return sleep
end
