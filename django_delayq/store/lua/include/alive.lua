-- The outage guard. When Redis could not be reached for longer than half a lease, every lease that was good then stays good for one more
-- lease, so that live workers extend what they hold before anybody takes it over. That needs proof: a caller whose own calls have
-- failed for so long, or a server that was started anew or has taken over. Silence alone is none: perhaps nobody was here. It holds
-- takeovers up for a breath, once, so that those who have the proof can bring it; a worker asks at least once a second, and comes
-- back within three. The clock may be put back: what was noted then lies ahead.
local BREATH = 5000 -- ms

-- Records that a worker is here. `away`: the ms for which calls of the caller have failed, until this one; `moved`: the server is not the
-- one on which a worker was last; `patient`: the caller asks when it likes, so silence is no sign of anything. Returns the moment before which a lease must have ended to be taken over now.
local function alive(lease, away, moved, patient)
  local last, from, till, up, kept = values_of(k_meta, 'alive', 'guard_from', 'guard_until', 'guard_since', 'guard_next')
  last, from, till = tonumber(last), tonumber(from), tonumber(till)
  if now ~= last then
    redis.call('HSET', k_meta, 'alive', int(now))
  end
  if till and till > now + lease then -- further ahead than anybody could have meant: it must not hold takeovers up for ever
    till = now + lease
    redis.call('HSET', k_meta, 'guard_until', int(till))
  end
  local breath = math.min(BREATH, lease / 2)
  local gap = last and math.max(0, now - last) or 0
  local silent, failed = not patient and gap > lease / 2, away > lease / 2
  -- Time in which nobody could come uses up no guard, but for its last breath: else rare polls would renew it. "nan" lies nowhere.
  local guarded = from and till and from < now and (silent and last + breath or now) < till
  if not (silent or failed or (moved and guarded)) then
    return guarded and from or now
  end
  local proven = failed or moved
  local begun = math.min(failed and now - away or now, silent and last or now)
  if not guarded then
    from, till, up, kept = begun, 0, now, begun
  else
    -- Outages one after the other: from `up` till now, silent times left out, Redis was there; each of those counts for a breath, so
    -- that there is an end. When that was a lease, the guard is renewed for leases alone that were good at `kept`: all others have had
    -- half a lease of it.
    up, kept = tonumber(up) or till - lease, tonumber(kept) or begun
    if silent or moved then
      up = math.min(now, up + gap) - breath
    end
    if proven and now - up > lease then
      from, up, kept = math.max(from, math.min(begun, kept)), now, begun
    elseif proven then
      from, kept = math.min(from, begun), now - up > lease / 2 and kept or begun
    end
  end
  till = proven and now + lease or math.max(till, now + breath)
  redis.call('HSET', k_meta, 'guard_from', int(from), 'guard_until', int(till), 'guard_since', int(up), 'guard_next', int(kept))
  return from
end
