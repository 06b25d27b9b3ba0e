-- purge: scheduled -> cancelled, many at a time; running jobs continue
-- keys: jobs high normal low runs keys leases cancels progress finished events wake meta stats asks names holders blocked waiters
-- include: begin tries bulk priority_bands tombstone asks words lines wake finish
-- ARGV: now by why, the maximum number (up to 200)
-- Returns: the number cancelled, the number of scheduled jobs that remain. Call until none remains.
-- O(log N) per job.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
try_writes()
local room, cancelled = tonumber(ARGV[4]), 0
-- Jobs that wait in a line go first, so that none is put back when another one leaves. If some of them remain, one may be the next now.
for _, band in ipairs({k_blocked, k_high, k_normal, k_low}) do
  if room == 0 then
    break
  end
  local ids = redis.call('ZRANGE', band, 0, room - 1)
  for i = 1, #ids do
    local letter, _, _, key = header(redis.call('HGET', k_jobs, ids[i]) or '')
    if band == k_blocked and letter and lines then
      lines.withdraw(ids[i], letter)
    end
    if band ~= k_blocked and letter and lines and lines.fair_line(ids[i], letter) then
      gather('ZREM', k_holders, lines.fair_line(ids[i], letter) .. '\0' .. ids[i])
    end
    gather('ZREM', band, ids[i])
    finish(ids[i], key or '', 'cancelled')
    event('cancelled', ids[i] .. ' 0 0 -\n{"m":"purged"}')
  end
  cancelled = cancelled + #ids
  room = room - #ids
end
flush()
if lines then
  wake_for(lines.call())
end
if cancelled ~= 0 then
  event('purged', int(cancelled))
  redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':cancelled', cancelled)
  cap_tombstones()
end
publish()
local left = redis.call('ZCARD', k_high) + redis.call('ZCARD', k_normal) + redis.call('ZCARD', k_low) + redis.call('ZCARD', k_blocked)
return {cancelled, left}
