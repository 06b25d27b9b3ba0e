-- Pauses. A due job leaves its band if one of its words is paused, see words.lua. It waits in the line of that word, see lines.lua.
--   pauses: word -> ms until which it is paused, 0 for no end; or r<ms>: it was resumed, and a job returns every so many ms (0: as many as
--     are claimed)
--   opens: \1<word> by the ms at which its next job returns; a pause without an end has no entry
-- Usually nothing is paused, see `named` in begin.lua. Then `limits` is nil. Needs begin, bulk, lines, priority_bands and words, and the
-- keys jobs meta blocked waiters pauses opens.
local limits

if named == '2' then
  local SAVED = 1000 -- ms; a pace makes up for no more than that
  local pauses, words, returned = {}, {}, {}

  local function words_for(id, record)
    local found = words[id]
    if not found then
      found = words_of(record, (lines.of(id)))
      words[id] = found
    end
    return found
  end

  -- Reads the pauses of these jobs at once.
  local function read(ids, records)
    local missing, n = {}, 0
    for i = 1, #ids do
      for _, word in ipairs(words_for(ids[i], records[i] or '')) do
        if pauses[word] == nil then
          pauses[word] = false
          n = n + 1
          missing[n] = word
        end
      end
    end
    local found = n > 0 and redis.call('HMGET', k_pauses, unpack(missing))
    for i = 1, n do
      pauses[missing[i]] = found[i]
    end
  end

  -- Whether a word with this value is paused now.
  local function is_paused(value)
    return value and string.byte(value) ~= 114 and (value == '0' or (tonumber(value) or math.huge) > now) -- an r
  end

  -- The paused word of a job, nil without any. `read` has read the pauses.
  local function paused(id, record)
    for _, word in ipairs(words_for(id, record)) do
      if is_paused(pauses[word]) then
        return word
      end
    end
  end

  -- Holds a due job if it is paused. Returns whether it is.
  local function hold(id, letter, due, record)
    local word = paused(id, record)
    if word then
      lines.wait(id, letter, '\1' .. word, due)
    end
    return word and true
  end

  -- Puts held jobs whose time has come back into their bands, with their dates: at most `most`. claim decides about them.
  local function open(most)
    local found = redis.call('ZRANGEBYSCORE', k_opens, '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, most)
    for i = 1, #found, 2 do
      local line, at = found[i], tonumber(found[i + 1])
      local word = string.sub(line, 2)
      local value = redis.call('HGET', k_pauses, word)
      if is_paused(value) then -- the clock was set back, or another program has written this
        local till = tonumber(value) or 0
        if till == 0 then
          gather('ZREM', k_opens, line)
        else
          gather('ZADD', k_opens, int(till), line)
        end
      elseif most > 0 then
        local pace = tonumber(string.match(value or '', '^r(%d+)$') or '0')
        at = math.max(at, now - SAVED)
        local count = pace == 0 and most or math.min(most, math.floor((now - at) / pace) + 1)
        local ids = lines.open(line, count)
        for n = 1, #ids do
          returned[ids[n]] = true
        end
        most = most - #ids
        if #ids < count then
          gather('HDEL', k_pauses, word)
          gather('ZREM', k_opens, line)
        else
          gather('HSET', k_pauses, word, 'r' .. int(pace))
          gather('ZADD', k_opens, int(pace == 0 and now or at + count * pace), line)
        end
      end
    end
    flush()
  end

  limits = {read = read, paused = paused, hold = hold, open = open, returned = returned}
end
