-- Gives a scheduled job its name and its rate: `said` is "most:name", then the rate, see lines.lua; '' for none. Returns the name. Needs
-- the keys names and meta.
local function give_name(id, said)
  local most, name, rate = string.match(said, '^(%d+):([^\2]*)(.*)$')
  if most then
    redis.call('HSET', k_names, id, most .. ':0:0:' .. name .. rate)
    if rate == '' then
      redis.call('HSETNX', k_meta, 'named', '1')
    else
      redis.call('HSET', k_meta, 'named', '3')
    end
  end
  return name ~= '' and name or nil
end
