-- The outage guard. If Redis was unavailable for longer than half a lease, every lease that was valid then stays valid for one more lease,
-- so that live workers can extend their leases before other workers take them over. This needs proof: a caller whose calls have failed
-- for that long, or a server that was restarted or promoted. Silence alone is no proof, because perhaps no worker was running. It
-- delays takeovers for a breath, once, so that callers with proof can bring it: a worker asks at least once a second, and reconnects
-- within three. The clock may be set back; then the noted times are in the future.
local BREATH = 5000 -- ms

-- Records that a worker is here. `away`: the ms for which the caller's calls have failed, until this one; `moved`: the server is not the
-- one that a worker used last; `patient`: the caller asks at any interval, so its silence proves nothing. The others are the values of meta:
-- alive, guard_from, guard_until, guard_since, guard_next. Returns the moment before which a lease must have ended to be taken over now.
local function alive(lease, away, moved, patient, last, from, till, up, kept)
  last, from, till = tonumber(last), tonumber(from), tonumber(till)
  if now ~= last then
    redis.call('HSET', k_meta, 'alive', int(now))
  end
  if till and till > now + lease then -- further ahead than possible: it must not delay takeovers forever
    till = now + lease
    redis.call('HSET', k_meta, 'guard_until', int(till))
  end
  local breath = math.min(BREATH, lease / 2)
  local gap = last and math.max(0, now - last) or 0
  local silent, failed = not patient and gap > lease / 2, away > lease / 2
  -- Time in which no worker could come does not use up a guard, except for its last breath: otherwise rare polls would renew it.
  local guarded = from and till and from < now and (silent and last + breath or now) < till
  if not (silent or failed or (moved and guarded)) then
    return guarded and from or now
  end
  local proven = failed or moved
  local begun = math.min(failed and now - away or now, silent and last or now)
  if not guarded then
    from, till, up, kept = begun, 0, now, begun
  else
    -- Consecutive outages: between `up` and now, without silent periods, Redis was available. Each period counts for a breath, so
    -- that there is an end. After one lease, the guard is renewed only for leases that were valid at `kept`: all others have had
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
