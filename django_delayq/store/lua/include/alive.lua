-- The outage guard. When Redis could not be reached for longer than half a lease, every lease that was good then stays good for one more
-- lease, so that live workers extend what they hold before anybody takes it over. That needs proof: a caller whose own calls have
-- failed for so long, or a server that was started anew or has taken over. Silence alone is none: perhaps nobody was here. It holds
-- takeovers up for a breath, once, so that those who have the proof can bring it; a worker asks at least once a second, and comes
-- back within three. The clock may be put back: what was noted then lies ahead.
local BREATH = 5000 -- ms

-- Records that a worker is here. `away`: the ms for which calls of the caller have failed, until this one; `moved`: the server is not the
-- one on which a worker was last. Returns the moment before which a lease must have ended to be taken over now.
local function alive(lease, away, moved)
  local last, from, till = values_of(k_meta, 'alive', 'guard_from', 'guard_until')
  last, from, till = tonumber(last), tonumber(from), tonumber(till)
  if now ~= last then
    redis.call('HSET', k_meta, 'alive', int(now))
  end
  if till and till > now + lease then -- further ahead than anybody could have meant: it must not hold takeovers up for ever
    till = now + lease
    redis.call('HSET', k_meta, 'guard_until', int(till))
  end
  local silent = last and now - last > lease / 2
  local guarded = from and till and from < now and now < till -- "nan", too, lies nowhere
  if away > lease / 2 or (moved and (silent or guarded)) then
    local begun = math.min(away > lease / 2 and now - away or now, silent and last or now, guarded and from or now)
    -- One outage after another makes no lease good for ever.
    from, till = math.max(begun, now - math.max(away, silent and now - last or 0) - 2 * lease), now + lease
  elseif silent and not guarded then
    from, till = last, now + math.min(BREATH, lease / 2)
  else
    return guarded and from or now
  end
  redis.call('HSET', k_meta, 'guard_from', int(from), 'guard_until', int(till))
  return from
end
