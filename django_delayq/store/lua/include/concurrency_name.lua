-- Gives a scheduled job its name, its rate and its fair word: `said` is "most:name", then the others, see lines.lua; '' for none. Returns
-- the name. Needs lines, and the keys names and meta.
local function give_name(id, said)
  local most, name, rest = string.match(said, '^(%d+):([^%c]*)(.*)$')
  if most then
    local value = most .. ':0:0:' .. name .. rest
    redis.call('HSET', k_names, id, value)
    if lines then
      lines.given(id, value)
    end
    if string.byte(rest) ~= 2 then
      redis.call('HSETNX', k_meta, 'named', '1')
    else
      redis.call('HSET', k_meta, 'named', '3')
    end
  end
  return name ~= '' and name or nil
end
