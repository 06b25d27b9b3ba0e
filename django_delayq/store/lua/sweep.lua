-- sweep: durable jobs in any state -> nothing; unfinished ones return from their rows
-- keys: jobs high normal low runs leases cancels progress keys failed finished events wake meta asks names holders blocked waiters
-- include: begin tries bulk priority_bands tombstone asks words lines wake finish
-- ARGV: now by why, the generation that is swept, progress to note (who done total), cursor ('0' to start); or '' '' '' and ids (at most 200):
--   jobs that have ended according to their rows, which are removed with an event
-- Returns the next cursor ('0': done; '' if this generation is not being swept, and nothing was done) and the number of removed jobs.
-- O(200).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
try_writes()
local gone = 0

local function leave(id, band, key)
  unlease(id)
  release(id, key)
  if lines then
    lines.withdraw(id, band)
  end
  gather('ZREM', BANDS[band], id)
  gather('ZREM', k_failed, id)
  unrun(id)
  gather('HDEL', k_jobs, id)
  if lines then
    lines.forget(id)
  end
  gone = gone + 1
end

local swept, progress, cursor, FIRST = ARGV[4], ARGV[5], ARGV[6], 7
if swept ~= '' then
  local generation, phase = values_of(k_meta, 'generation', 'rolled')
  if generation ~= swept or phase ~= 'sweep' then
    return {'', 0}
  end
  redis.call('HSET', k_meta, 'restoring', int(now) .. ' ' .. progress)
  local found
  cursor, found = unpack(redis.call('HSCAN', k_jobs, cursor, 'COUNT', 200))
  for i = 1, #found, 2 do
    local id, record = found[i], found[i + 1]
    local band, durable, _, key = header(record)
    if durable then -- only claim rejects unreadable records
      leave(id, band, key)
    end
  end
else
  cursor = '0'
  for i = FIRST, #ARGV do
    local id = ARGV[i]
    local band, _, _, key = header(redis.call('HGET', k_jobs, id) or '')
    if band then
      leave(id, band, key)
      event('dropped', id)
    end
  end
end
flush()
if lines then
  wake_for(lines.call())
end
publish()
return {cursor, gone}
