-- Gives a scheduled job its name: `said` is "most:name", '' for none. Returns the name. See lines.lua. Needs the keys names and meta.
local function give_name(id, said)
  local most, name = string.match(said, '^(%d+):(.+)$')
  if most then
    redis.call('HSET', k_names, id, most .. ':0:0:' .. name)
    redis.call('HSETNX', k_meta, 'named', '1')
  end
  return name
end
