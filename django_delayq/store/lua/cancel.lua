-- cancel: scheduled -> cancelled; running -> running with a request
-- keys: jobs high normal low runs leases cancels progress keys failed finished events meta stats
-- include: begin bulk lanes finish holder ground
-- ARGV: now by why, tombstone ('1': mark unknown ids as finished, so that a late publish cannot start them), the ground on which
--   nothing is to be done ('' none; with one, a job that is cancelled already answers done), then ids (at most 200); an id that begins
--   with '=' is a business key
-- Returns the ground, then per id: status id. status: done, running (a request was set), finished, unknown; id: the job found, '' if
--   none. On the ground that was given: the ground alone.
-- O(log N) per job.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local ground = (redis.call('HGET', k_meta, 'generation') or '') .. ':' .. server()
local reply, cancelled = {ground}, 0
if ARGV[5] == ground then
  return reply
end
for i = 6, #ARGV do
  local id = ARGV[i]
  if string.sub(id, 1, 1) == '=' then
    id = holder_of(string.sub(id, 2)) or ''
  end
  local record = id ~= '' and redis.call('HGET', k_jobs, id)
  local status = 'unknown'
  if record then
    local lane, _, _, key = header(record)
    if redis.call('ZSCORE', k_leases, id) then
      status = 'running'
      if redis.call('HSETNX', k_cancels, id, by) == 1 then
        event('cancel_requested', id)
      end
    elseif not lane or redis.call('ZSCORE', k_failed, id) then
      status = 'finished'
    elseif redis.call('ZREM', LANES[lane], id) == 1 then
      status = 'done'
      release(id, key)
      redis.call('HDEL', k_jobs, id)
      redis.call('HDEL', k_runs, id)
      redis.call('ZADD', k_finished, tombstone(true), id)
      event('cancelled', id .. ' 0 0 -')
      cancelled = cancelled + 1
    end
  elseif id ~= '' then
    local ended = tonumber(redis.call('ZSCORE', k_finished, id) or '')
    if ended then
      status = ARGV[5] ~= '' and ended % 1 == 0.5 and 'done' or 'finished' -- see finish.lua
    elseif ARGV[4] == '1' then
      redis.call('ZADD', k_finished, tombstone(true), id)
    end
  end
  reply[#reply + 1] = status
  reply[#reply + 1] = id
end
if cancelled > 0 then
  redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':cancelled', cancelled)
  cap_tombstones()
end
publish()
return reply
