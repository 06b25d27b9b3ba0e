-- The outcome of a job whose worker died: cancelled if that was requested, failed as poison after too many crashes,
-- otherwise it runs again with the same attempt number. Needs begin, bulk and finish, and the key failed.

-- Returns 'cancelled', 'failed' or 'again', and carries out the first two. `how`: JSON about the end of its process, if known.
local function crash(id, attempt, crashes, nonce, key, max_crashes, cancelled, how)
  local fields = id .. ' ' .. int(attempt) .. ' ' .. int(crashes)
  if cancelled then
    unlease(id)
    finish(id, key, 'cancelled')
    event('cancelled', fields .. ' ' .. nonce .. '\n{"m":"cancelled while running; its worker vanished"}')
    return 'cancelled'
  end
  if crashes > max_crashes then
    unlease(id)
    release(id, key)
    unrun(id)
    gather('ZADD', k_failed, int(now), id)
    local more = string.match(how or '', '^{(".+)$')
    event('failed', fields .. ' ' .. nonce .. '\n{"c":"Poison","m":"its worker vanished ' .. int(crashes)
      .. ' times while it ran, more than MAX_CRASHES allows","p":"poison-crashes"' .. (more and ',' .. more or '}'))
    return 'failed'
  end
  return 'again'
end
