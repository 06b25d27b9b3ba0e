-- The ground that a queue stands on: the generation of its data, and the run of the server that holds it. A server that was wiped
-- has another generation; one that was restarted, or took over, has another run, and perhaps older data than was answered before.

-- The id of this run of the server; '' where INFO is not allowed.
local function server()
  local reply = redis.pcall('INFO', 'server')
  return type(reply) == 'string' and string.match(reply, 'run_id:(%w+)') or ''
end

-- Whether a job that is not here may be running all the same. `lacking` says how its row stands: 'running', or it waits until this moment
-- in ms; or it waits whatever happened ('scheduled'). What is due may have begun on the ground before, and whoever runs it comes to tell
-- until this one is confirmed.
local function may_run(lacking)
  local date = tonumber(lacking)
  if not date then
    return lacking == 'running'
  end
  local confirmed, rolled = values_of(k_meta, 'server', 'rolled')
  return date <= now and (rolled or confirmed ~= server())
end
