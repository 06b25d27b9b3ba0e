-- requeue: failed or cancelled -> scheduled, with a fresh ladder
-- keys: jobs high normal low leases cancels keys failed finished runs events wake meta stats asks names holders blocked waiters
-- include: begin tries bulk priority_bands nowhere fair_words words lines concurrency_name tombstone wake unique_key
-- ARGV: now by why, due ('' to use delay), delay ms from Redis's now, id, record, vouched, name of that record in the format of
--   schedule, end
--   record: '' to use the record of a failed job in Redis; vouched: '1' if the caller knows that the job failed or was
--   cancelled. Otherwise the record only counts if a tombstone shows that it was cancelled or displaced. A tombstone of a success overrules
--   it. 'unresolved': no event shows how the job ended, a person decided that it runs again, and no tombstone overrules that
--   end: the score of the only end from which it may be put back, '0': no score is known; '' any. With another end, it was put back before
-- Returns status, id, due. status: done, running, conflict (already scheduled, succeeded, another end, or another job holds its key: id),
--   unknown (no record here and none given). Error before any write: RESTORING, while rolled-back data is being corrected: rows that
--   do not record a requeue would end the job again.
-- O(log N).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
try_writes()
if redis.call('HEXISTS', k_meta, 'rolled') == 1 then
  return redis.error_reply('RESTORING what was rolled back is being put right; ask again in a moment')
end
local date, delay, id, given, vouch, name, seen = unpack(ARGV, 4, 10)
local due = tonumber(date) or (now + tonumber(delay))
local vouched = vouch ~= ''
local kept = redis.call('HGET', k_jobs, id)
local failed = redis.call('ZSCORE', k_failed, id)
local finished = redis.call('ZSCORE', k_finished, id)
local how = end_of(finished)
local cancelled, succeeded = how == 'cancelled' or how == 'displaced', how == 'succeeded'
local status, holder = 'done', id
local ended = failed or (how ~= 'finished' and finished) -- otherwise tidy has dated the tombstone
local place = kept and header(kept)
if kept and not failed and not (place and is_nowhere(id, place)) then
  status = redis.call('ZSCORE', k_leases, id) and 'running' or 'conflict'
elseif succeeded and vouch ~= 'unresolved' then
  status = 'conflict' -- the caller has an old row, because the mirror lags
elseif seen ~= '' and ended and tonumber(ended) ~= tonumber(seen) then
  status = 'conflict'
else
  local record = given ~= '' and (vouched or cancelled) and given or kept
  local band, durable, _, key = header(record or '')
  if not band then
    status = 'unknown'
  else
    local other = key ~= '' and holder_of(key)
    if other and other ~= id then
      status, holder = 'conflict', other
    else
      redis.call('HSET', k_jobs, id, record)
      if record == given then
        if lines then
          lines.forget(id)
        end
        give_name(id, name)
      end
      redis.call('ZREM', k_failed, id)
      redis.call('ZREM', k_finished, id)
      redis.call('HDEL', k_runs, id)
      redis.call('HDEL', k_asks, id)
      redis.call('HDEL', k_cancels, id) -- from an earlier run that Redis had lost
      local wakes = due
      if lines then
        wakes = lines.put(id, band, due, redis.call)
      else
        redis.call('ZADD', BANDS[band], int(due), id)
      end
      if key ~= '' then
        redis.call('HSET', k_keys, key, id)
      end
      event('requeued', id .. ' ' .. int(due) .. (durable and '' or '\n' .. record))
      redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':requeued', 1)
      wake_for(wakes)
    end
  end
end
publish()
return {status, holder, int(due)}
