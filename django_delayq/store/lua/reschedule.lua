-- reschedule: scheduled -> scheduled, with another date (run now: delay 0)
-- keys: jobs high normal low leases failed finished keys events wake meta names holders blocked waiters firsts
-- include: begin tries bulk priority_bands words lines wake unique_key epoch first_date
-- ARGV: now by why, the epoch in which nothing may be done ('' none), the state of a missing job according to its row ('' unknown; see
--   epoch.lua: one that may run counts as running; 'waited': also of an existing job: another server made this change before, so it had
--   not started; 'ended': its row has ended, so an unconfirmed server that still has the job has older data), policy, then per job (at most
--   200): id date; an id with a leading '=' is a key
--   date: ms; with a leading plus a delay from Redis's now
--   policy: 'earliest' or 'latest': a date that already fits stays, without an event; 'latest+<ms>': the date is at most that long after
--   the first date, see first_date.lua; '' changes every date
-- Returns the epoch and the id of the event ('' if nothing changed), then per job: status id due (the current date) item. status:
--   done, running, finished, unknown; item: the place of its item in the event, -1 if nothing changed. In the given epoch: only the epoch.
-- O(log N) per job.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
try_writes()
present()
local unless, lacking, policy, FIRST = ARGV[4], ARGV[5], ARGV[6], 7
local epoch = (generation or '') .. ':' .. server()
if unless == epoch then
  return {epoch}
end
local most = at_most(policy)
policy = most and 'latest' or policy
local reply = {epoch, ''}
for i = FIRST, #ARGV, 2 do
  local id, when = ARGV[i], ARGV[i + 1]
  if string.sub(id, 1, 1) == '=' then
    id = holder_of(string.sub(id, 2)) or ''
  end
  local record = id ~= '' and redis.call('HGET', k_jobs, id)
  local band = record and header(record)
  local status, due, item = 'unknown', tonumber(when), -1
  if string.byte(when) == 43 then -- a plus: a delay
    due = now + due
  end
  local date = tonumber(band and (lines and lines.date_of(id, band) or redis.call('ZSCORE', BANDS[band], id)) or '')
  if (record and redis.call('ZSCORE', k_leases, id)) or (date and lacking ~= 'waited' and may_run(date, true)) then
    status = 'running'
  elseif date and lacking == 'ended' and confirmed and (rolled or confirmed ~= server()) then
    status = 'finished'
  elseif date then
    status = 'done'
    local first = most and first_of(id)
    if first then
      due = math.min(due, first + most)
    end
    if (policy == 'earliest' and date <= due) or (policy == 'latest' and date >= due) then
      due = date -- another call was faster
    else
      if first then
        note_first(id, first)
      end
      local wakes = due
      if lines then
        wakes = lines.move(id, band, due)
      else
        redis.call('ZADD', BANDS[band], int(due), id)
      end
      item = events_n / 2
      event('rescheduled', id .. ' ' .. int(due) .. (policy ~= '' and ' ' .. policy or ''))
      wake_for(wakes)
    end
  elseif record or (id ~= '' and redis.call('ZSCORE', k_finished, id)) then
    status = 'finished'
  elseif id ~= '' and lacking ~= '' and may_run(lacking) then
    status = 'running'
  end
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = status, id, int(due), item
end
if lines then
  wake_for(lines.call())
end
reply[2] = publish()
return reply
