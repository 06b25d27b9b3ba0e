-- sweep: durable jobs leave Redis, whatever their state, and leave nothing behind: what is unfinished comes back from its row
-- keys: jobs high normal low runs leases cancels progress keys failed finished events meta
-- include: begin bulk lanes finish
-- ARGV: now by why, the generation that is swept, progress to note (who done total), cursor ('0' to begin); or '' '' '' and ids (at most 200):
--   jobs that have ended by their rows, which leave with an event
-- Returns the cursor to go on with ('0': done; '' when this generation is not being swept, nothing has been done) and how many left.
-- O(200).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local gone = 0

local function leave(id, lane, key)
  unlease(id)
  release(id, key)
  gather('ZREM', LANES[lane], id)
  gather('ZREM', k_failed, id)
  gather('HDEL', k_runs, id)
  gather('HDEL', k_jobs, id)
  gone = gone + 1
end

local cursor = '0'
if ARGV[4] ~= '' then
  local meta = redis.call('HMGET', k_meta, 'generation', 'rolled')
  if meta[1] ~= ARGV[4] or meta[2] ~= 'sweep' then
    return {'', 0}
  end
  redis.call('HSET', k_meta, 'restoring', int(now) .. ' ' .. ARGV[5])
  local found = redis.call('HSCAN', k_jobs, ARGV[6], 'COUNT', 200)
  cursor = found[1]
  for i = 1, #found[2], 2 do
    local lane, durable, _, key = header(found[2][i + 1])
    if durable then -- nobody but claim sets aside what cannot be read
      leave(found[2][i], lane, key)
    end
  end
else
  for i = 7, #ARGV do
    local lane, _, _, key = header(redis.call('HGET', k_jobs, ARGV[i]) or '')
    if lane then
      leave(ARGV[i], lane, key)
      event('dropped', ARGV[i])
    end
  end
end
flush()
publish()
return {cursor, gone}
