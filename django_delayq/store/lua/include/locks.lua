-- Locks by name: the hash `locks`, name -> "fence token since who", and `lock_ends`, name by the end of its lease. Needs both keys.

-- How long an expired lock is kept: a holder that was frozen, and that no other holder followed, finds its lock again.
local LOCK_LEFT = 60000

-- The lock: fence, token, since when (ms), holder, and the end of the lease; nothing if the value is invalid.
local function lock_of(name)
  local fence, token, since, who = string.match(redis.call('HGET', k_locks, name) or '', '^(%d+) (%w+) (%d+) (.*)$')
  local ends = token and redis.call('ZSCORE', k_lock_ends, name)
  if ends then
    return fence, token, since, who, tonumber(ends)
  end
end
