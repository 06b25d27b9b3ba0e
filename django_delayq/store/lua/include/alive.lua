-- The outage guard. Workers call claim or extend at least once a second; a gap of more than half a lease means that none
-- reached Redis. Then every lease that was good at the start of the gap stays good for one more lease, so that the
-- live workers can extend what they hold before anybody takes it over. The clock may be put back: what was noted then lies ahead.

-- Records that a worker is here. Returns the moment before which a lease must have ended to be taken over now.
local function alive(lease)
  local seen = redis.call('HMGET', k_meta, 'alive', 'guard_from', 'guard_until')
  local last, from, till = tonumber(seen[1]), tonumber(seen[2]), tonumber(seen[3])
  if now ~= last then
    redis.call('HSET', k_meta, 'alive', int(now))
  end
  if last and now - last > lease / 2 then
    from, till = math.min(last, (till and till > last and from) or last), now + lease
    redis.call('HSET', k_meta, 'guard_from', int(from), 'guard_until', int(till))
  end
  if till and from and from < now and now < till then -- "nan", too, lies nowhere
    return from
  end
  return now
end
