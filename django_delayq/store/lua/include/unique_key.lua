-- Finds the holder of a key. An entry in `keys` only counts if its job exists and has this key.

-- The id of the unfinished job that holds the key; nil if none does.
local function holder_of(key)
  local id = redis.call('HGET', k_keys, key)
  local record = id and is_id(id) and redis.call('HGET', k_jobs, id)
  if not record then
    return nil
  end
  local _, _, _, own = header(record)
  return own == key and id or nil
end
