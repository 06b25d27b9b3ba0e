-- The epoch of a queue: the generation of its data, and the run of the server that holds it. A wiped server has another generation. A
-- server that was restarted or promoted has another run, and may have older data than earlier answers.

-- The id of this run of the server; '' if INFO is not permitted.
local function server()
  local reply = redis.pcall('INFO', 'server')
  return type(reply) == 'string' and string.match(reply, 'run_id:(%w+)') or ''
end

-- Whether a job that waits here, or is missing, may be running. A due job may have started in the previous epoch, and its worker can only
-- report it until this epoch is confirmed. `waits`: the date until which it waits, in ms; for a missing job, according to its row, which can
-- also be 'running', or 'scheduled' if it waits in any case. `here`: the job exists, and changes after a wipe are known here. But restore
-- gives overdue jobs another date, and for one lease their last worker may hold them without knowing of the loss.
local function may_run(waits, here)
  local date = tonumber(waits)
  if not date then
    return waits == 'running'
  end
  local latest, until_ms = string.match(here and redis.call('HGET', k_meta, 'brought_back') or '', '^(%d+) (%d+)$')
  if latest and date <= tonumber(latest) and now < tonumber(until_ms) then
    return true
  end
  return date <= now and (confirmed or not here) and (rolled or confirmed ~= server())
end
