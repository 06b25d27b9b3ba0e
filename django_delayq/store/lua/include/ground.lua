-- The ground that a queue stands on: the generation of its data, and the run of the server that holds it. A server that was wiped
-- has another generation; one that was restarted, or took over, has another run, and perhaps older data than was answered before.

-- The id of this run of the server; '' where INFO is not allowed.
local function server()
  local reply = redis.pcall('INFO', 'server')
  return type(reply) == 'string' and string.match(reply, 'run_id:(%w+)') or ''
end
