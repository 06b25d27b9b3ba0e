-- Writes gathered per key and sent as one command each: a script over 200 jobs makes a dozen calls, not a thousand.
local pending, pending_order = {}, {}

-- gather('HDEL', k_jobs, id): remembers the arguments for one variadic command per (command, key).
local function gather(command, key, a, b)
  local slot = command .. key
  local list = pending[slot]
  if not list then
    list = {command, key}
    pending[slot] = list
    pending_order[#pending_order + 1] = list
  end
  list[#list + 1] = a
  if b then
    list[#list + 1] = b
  end
end

local function flush()
  for i = 1, #pending_order do
    redis.call(unpack(pending_order[i]))
  end
end
