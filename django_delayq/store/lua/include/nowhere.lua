-- A record without a place. If a permission is withdrawn, Redis can refuse a command in the middle of a script, and does not roll the
-- script back. Then a record can remain that is in no band, has no lease, has not failed, and does not wait for its name. No claim finds such
-- a job. Scripts that schedule, restore, requeue or cancel treat it as missing. Needs bands, and the keys leases failed blocked.
local function is_nowhere(id, band)
  return not (redis.call('ZSCORE', BANDS[band], id) or redis.call('ZSCORE', k_leases, id) or redis.call('ZSCORE', k_failed, id)
    or redis.call('ZSCORE', k_blocked, id))
end
