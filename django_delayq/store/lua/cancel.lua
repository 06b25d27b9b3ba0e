-- cancel: scheduled -> cancelled; running -> running, with a request to cancel or to abort
-- keys: jobs high normal low runs leases cancels progress keys failed finished events wake meta stats asks names holders blocked waiters
-- include: begin tries bulk priority_bands nowhere tombstone asks words lines wake finish unique_key epoch
-- ARGV: now by why, lacking, the epoch in which nothing may be done ('' none), abort ('1' or ''), id; an id that starts
--   with '=' is a key
--   lacking: the state of a missing job according to its row, see epoch.lua: a waiting one is ended, so that neither a late publication
--     nor a restore can start it; 'scheduled': it has certainly not started, here or elsewhere; '' unknown
--   If the job may be running, here or elsewhere, a request is stored. claim carries it out if no worker runs the job.
--   abort: a running job is interrupted instead of only asked to stop, see worker/process/task_call.py, even if its cancel was requested
--     before. A waiting job is cancelled
-- Returns the epoch and the id of the event ('' if nothing changed), then status, id. status: done (also if it was cancelled
--   before), running (a request is stored), finished, unknown; id: the job that was found, '' if none. In the given epoch: only the epoch.
-- O(log N).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
try_writes()
present()
local lacking, unless, abort, id = ARGV[4], ARGV[5], ARGV[6] == '1', ARGV[7]
local epoch = (generation or '') .. ':' .. server()
if unless == epoch then
  return {epoch}
end

-- The requesting actor, after a byte 1 for an abort. No actor starts with that byte.
local asks = (abort and '\1' or '') .. string.gsub(by, '^\1+', '')
local function request(id, unheld)
  if unheld then
    redis.call('HSET', k_meta, 'asked', '1') -- so that claim checks
  end
  local asked = redis.call('HGET', k_cancels, id)
  if not asked or (abort and string.byte(asked) ~= 1) then
    redis.call('HSET', k_cancels, id, asks)
    event('cancel_requested', abort and id .. ' abort' or id)
  end
  return 'running'
end
local waits = lacking ~= '' and lacking ~= 'running' -- according to its row

if string.sub(id, 1, 1) == '=' then
  id = holder_of(string.sub(id, 2)) or ''
end
local record = id ~= '' and redis.call('HGET', k_jobs, id)
local status, cancelled = 'unknown', false
if record then
  local band, _, _, key = header(record)
  local date = band and (lines and lines.date_of(id, band) or redis.call('ZSCORE', BANDS[band], id))
  if redis.call('ZSCORE', k_leases, id) then
    status = request(id)
  elseif not band or redis.call('ZSCORE', k_failed, id) then
    status = 'finished'
  elseif date and lacking ~= 'scheduled' and may_run(date, true) then
    status = request(id, true)
  elseif (lines and lines.withdraw(id, band)) or redis.call('ZREM', BANDS[band], id) == 1 or is_nowhere(id, band) then
    status = 'done'
    release(id, key)
    redis.call('HDEL', k_jobs, id)
    redis.call('HDEL', k_runs, id)
    redis.call('HDEL', k_asks, id)
    if lines then
      lines.forget(id)
    end
    redis.call('ZADD', k_finished, tombstone('cancelled'), id)
    event('cancelled', id .. ' 0 0 -')
    cancelled = true
  end
elseif id ~= '' then
  local how = end_of(redis.call('ZSCORE', k_finished, id))
  if how then
    status = how == 'cancelled' and 'done' or 'finished'
    if lacking ~= '' and (how == 'cancelled' or how == 'displaced') then
      event('cancelled', id .. ' 0 0 -') -- the row does not record it; perhaps the reply to the cancel was lost
    end
  elseif lacking ~= '' and may_run(lacking) then
    status = request(id, true)
  elseif waits then
    status = 'done'
    redis.call('ZADD', k_finished, tombstone('cancelled'), id)
    event('cancelled', id .. ' 0 0 -')
  end
end
flush()
if cancelled then
  if lines then
    wake_for(lines.call(), armed)
  end
  redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':cancelled', 1)
  cap_tombstones()
end
return {epoch, publish(), status, id}
