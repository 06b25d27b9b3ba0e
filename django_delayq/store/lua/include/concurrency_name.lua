-- Gives a scheduled job its name: `said` is "most:name", '' for none. Returns the name. See concurrency_limit.lua. Needs the keys names and meta.
local function give_name(id, said)
  local most, name = string.match(said, '^(%d+):(.+)$')
  if most then
    redis.call('HSET', k_names, id, most .. ':0:0:' .. name)
    redis.call('HSET', k_meta, 'named', '1')
  end
  return name
end
