-- Tries the commands that add and remove before a script writes. If a permission is withdrawn, Redis can refuse any of them, and does
-- not roll the script back. Scripts that run for each job do not call this: they write in a safe order, see bulk.lua. Needs the key finished.
local function try_writes()
  local untouched = k_finished
  redis.call('ZADD', untouched, 'XX', '0', '_')
  redis.call('ZREM', untouched, '_')
end
