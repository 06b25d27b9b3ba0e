-- extend: running -> running, with a later end of the lease
-- keys: runs leases cancels progress meta events
-- include: begin runs alive
-- ARGV: now by(worker) why, lease ms (for a pull consumer, followed by "/" and its queue's lease), then per job (at most 200): id nonce
--   progress ("done/total" or '')
-- Returns per job: ok, cancel (held; the task is asked to stop), abort (held; it must be interrupted, see cancel.lua), lost (another
--   claim holds it, or is about to: see RESPITE in claim.lua), gone (no claim holds it: it has ended, or Redis lost its data and the job
--   must still be adopted), wait (the same, but jobs cannot be adopted yet, see restore.lua).
-- Writes no event: nothing visible has changed.
-- O(log N) per job.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory, so that leases are extended at maxmemory
local STRIDE, FIRST = 3, 5
local lease, pulled = string.match(ARGV[4], '^(%d+)/?(%d*)$')
lease, pulled = tonumber(lease), tonumber(pulled)
alive(pulled or lease, 0, false, pulled, values_of(k_meta, 'alive', 'guard_from', 'guard_until', 'guard_since', 'guard_next'))
local ids = {}
for i = FIRST, #ARGV, STRIDE do
  ids[#ids + 1] = ARGV[i]
end
local reply = {}
if #ids == 0 then
  return reply
end
local runs = redis.call('HMGET', k_runs, unpack(ids))
local cancels = redis.call('HMGET', k_cancels, unpack(ids))
local extended, progress, gone = {}, {}, nil
for i = 1, #ids do
  local id, nonce, done = unpack(ARGV, FIRST + (i - 1) * STRIDE, FIRST + i * STRIDE - 1)
  local _, _, _, held = run_of(runs[i])
  if nonce == '' or held ~= nonce then
    gone = gone or (redis.call('HGET', k_meta, 'rolled') == 'sweep' and 'wait' or 'gone')
    reply[i] = held and held ~= '' and 'lost' or gone
  elseif pulled and tonumber(redis.call('ZSCORE', k_leases, id) or 0) % 1 ~= 0 then
    reply[i] = 'lost'
  else
    reply[i] = cancels[i] and (string.byte(cancels[i]) == 1 and 'abort' or 'cancel') or 'ok'
    extended[#extended + 1] = int(now + lease)
    extended[#extended + 1] = id
    if done ~= '' then
      progress[#progress + 1] = id
      progress[#progress + 1] = done
    end
  end
end
if #extended ~= 0 then
  redis.call('ZADD', k_leases, unpack(extended))
end
if #progress ~= 0 then
  redis.call('HSET', k_progress, unpack(progress))
end
return reply
