-- Writes that are gathered per key and sent as one command each: a script for 200 jobs makes a dozen calls, not a thousand. Additions come
-- before removals: if Redis refuses a command in the middle, a job can be in two places, but never in none.
local pending, order = {}, {} -- `order` has up to three kinds: 1 ZADD, 2 HSET, 3 removals

-- gather('HDEL', k_jobs, id): remembers the arguments for one variadic command per (command, key).
local function gather(command, key, a, b)
  local lists = pending[command]
  if not lists then
    lists = {}
    pending[command] = lists
  end
  local list = lists[key]
  if not list then
    list = {command, key, n = 2} -- the length is stored, because computing it takes time
    lists[key] = list
    local kind = command == 'ZADD' and 1 or command == 'HSET' and 2 or 3
    local same = order[kind]
    if same then
      same[#same + 1] = list
    else
      order[kind] = {list}
    end
  end
  local n = list.n + 1
  list[n] = a
  if b then
    n = n + 1
    list[n] = b
  end
  list.n = n
end

-- `only`: sends only that kind. Gather nothing more until the next full flush.
local function flush(only)
  for kind = only or 1, only or 3 do
    local lists = order[kind]
    for i = 1, lists and #lists or 0 do
      redis.call(unpack(lists[i], 1, lists[i].n))
    end
    order[kind] = nil
  end
  if not only then
    pending = {}
  end
end
