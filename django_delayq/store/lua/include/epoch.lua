-- The epoch of a queue: the generation of its data, and the run of the server that holds it. A server that was wiped
-- has another generation; one that was restarted, or took over, has another run, and perhaps older data than was answered before.

-- The id of this run of the server; '' where INFO is not allowed.
local function server()
  local reply = redis.pcall('INFO', 'server')
  return type(reply) == 'string' and string.match(reply, 'run_id:(%w+)') or ''
end

-- Whether a job that waits here, or is not here, may be running all the same. What is due may have begun in the epoch before, and whoever
-- runs it comes to tell until this one is confirmed. `waits`: until when, in ms; of one that is not here by its row, which may also say
-- 'running', or that it waits whatever happened ('scheduled'). `here`: it is, and what came after a wipe is known here; but restore has
-- brought back what was overdue, with another date, and for a lease whoever had claimed it may hold it, not knowing of the loss yet.
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
