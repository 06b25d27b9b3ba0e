-- Stream ids as numbers that can be compared, and `mirrored` in meta: the last event that the database has.
local function position(id)
  local ms, number = string.match(id or '', '^(%d+)-(%d+)$')
  return tonumber(ms or 0), tonumber(number or 0)
end

local function further(id, other)
  local ms, number = position(id)
  local other_ms, other_number = position(other)
  return ms > other_ms or (ms == other_ms and number > other_number)
end

-- A slower mirror can come with an older id, which changes nothing.
local function note_mirrored(id)
  if further(id, redis.call('HGET', k_meta, 'mirrored') or '') then
    redis.call('HSET', k_meta, 'mirrored', id)
  end
end
