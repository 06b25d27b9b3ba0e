-- Writes gathered per key and sent as one command each: a script over 200 jobs makes a dozen calls, not a thousand.
local pending, pending_order = {}, {}

-- gather('HDEL', k_jobs, id): remembers the arguments for one variadic command per (command, key).
local function gather(command, key, a, b)
  local lists = pending[command]
  if not lists then
    lists = {}
    pending[command] = lists
  end
  local list = lists[key]
  if not list then
    list = {command, key, n = 2} -- a length is searched for, unless it is kept
    lists[key] = list
    pending_order[#pending_order + 1] = list
  end
  local n = list.n + 1
  list[n] = a
  if b then
    n = n + 1
    list[n] = b
  end
  list.n = n
end

local function flush()
  for i = 1, #pending_order do
    redis.call(unpack(pending_order[i], 1, pending_order[i].n))
  end
  pending, pending_order = {}, {}
end
