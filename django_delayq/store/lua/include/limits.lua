-- Pauses and rates. A due job leaves its band if one of its words is paused, see words.lua. It waits in the line of that word, see
-- lines.lua. A job with a rate is only claimed with a token of its rate, by the clock of Redis, and only for an idle thread. Otherwise it
-- waits in the line of the rate.
--   pauses: word -> ms until which it is paused, 0 for no end; or r<ms>: it was resumed, and a job returns every so many ms (0: as many as
--     are claimed)
--   limits: rate -> tokens:ms:burst, if a person has set it; \1<task> -> the same, or "none", as the newest code declares it. Without both,
--     the one with which the job was scheduled counts, see lines.lua
--   rates: rate by the ms at which all its tokens are there again: its theoretical arrival time (GCRA), with a fraction. One in the past says
--     nothing
--   opens: \1<word> or \2<rate> by the ms at which its next job returns, or later; a pause without an end has no entry
-- Usually nothing is paused, and no job has a rate, see `named` in begin.lua. Then `limits` is nil. Needs begin, bulk, lines, priority_bands
-- and words, and the keys jobs meta blocked waiters pauses limits rates opens.
local limits

if named == '2' or named == '3' then
  local SAVED = 1000 -- ms; a pace makes up for no more than that
  local pauses, words, returned = {}, {}, {}
  local rates, taken, waiting, moved = {}, {}, {}, {}
  local set, times, rated = {}, {}, {} -- what `limits` and `rates` have, and the rates of jobs
  local pausing = named == '2' or redis.call('EXISTS', k_pauses) == 1

  local function words_for(id, record)
    local found = words[id]
    if not found then
      found = words_of(record, (lines.of(id)))
      words[id] = found
    end
    return found
  end

  -- Tokens, ms and burst of a rate, as numbers; nil for an invalid value.
  local function parsed(value)
    local count, per, burst = string.match(value or '', '^(%d+):(%d+):(%d+)$')
    if not count or #value > 40 then
      return nil
    end
    count, per, burst = tonumber(count), tonumber(per), tonumber(burst)
    if count > 0 and per > 0 and burst > 0 then
      return count, per, burst
    end
  end

  -- Reads the rates of these jobs at once: for each, the ms per token, the burst, and since when the next token is there, or from when on.
  -- A time further ahead than all tokens take is from a clock that was set back, or from a slower rate. The rate that a person has set
  -- counts, otherwise the one that the newest code declares for the task, otherwise the one with which the job was scheduled.
  local function read_rates(ids, records)
    local fields, names, n, m = {}, {}, 0, 0
    for i = 1, #ids do
      local name, own = lines.rate_of(ids[i])
      if name then
        local task = '\1' .. (string.match(records[i] or '', '^%S+ (%S+)') or '')
        rated[ids[i]] = {name = name, own = own, task = task}
        if times[name] == nil then
          times[name] = 0
          n, m = n + 1, m + 1
          names[n], fields[m] = name, name
        end
        if set[task] == nil then
          set[task] = false
          m = m + 1
          fields[m] = task
        end
      end
    end
    local found = m > 0 and redis.call('HMGET', k_limits, unpack(fields))
    for i = 1, m do
      set[fields[i]] = found[i]
    end
    local scores = n > 0 and redis.call('ZMSCORE', k_rates, unpack(names))
    for i = 1, n do
      times[names[i]] = tonumber(scores[i] or '') or 0
    end
    for i = 1, #ids do
      local job = rated[ids[i]]
      local name = job and not rates[job.name] and job.name
      if name then
        local count, per, burst = parsed(set[name])
        if not count and set[job.task] ~= 'none' then
          count, per, burst = parsed(set[job.task])
          if not count then
            count, per, burst = parsed(job.own)
          end
        end
        if count then
          local each = per / count
          local full = math.max(times[name], now)
          if full > now + burst * each then
            full = now + burst * each
            taken[name] = true -- it is written, because it must not move on with the clock
          end
          rates[name] = {each = each, burst = burst, at = full - (burst - 1) * each}
        end
      end
    end
  end

  -- The rate of a job; nil without one, or if the newest code of its task has none and no person has set it. `read` has read it.
  local function rate_of(id)
    local job = rated[id]
    if job and (set[job.name] or set[job.task] ~= 'none') then
      return job.name
    end
  end

  -- Whether the rate of a job has a token now. `read` has read the rate; an invalid one limits nothing.
  local function has_token(name)
    local rate = rates[name]
    return not rate or rate.at <= now
  end

  local function take_token(name)
    local rate = rates[name]
    if rate then
      rate.at = rate.at + rate.each
      taken[name] = true
    end
  end

  -- A due job leaves its band and waits for a token.
  local function wait(id, letter, due, name)
    lines.wait(id, letter, '\2' .. name, due)
    waiting[name] = true
    moved[id] = nil
  end

  -- Reads the pauses and the rates of these jobs at once.
  local function read(ids, records)
    if named == '3' then
      read_rates(ids, records)
    end
    if not pausing then
      return
    end
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
    if not pausing then
      return nil
    end
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

  -- Puts the next jobs of rates with tokens back into their bands, at most `most` in all. claim decides about them; see `close`. The first
  -- job of each line says what its task declares. Usually a line has one token, so the others are not read.
  local function open_rates(names, most)
    local first, ids = {}, {}
    for i = 1, #names do
      first[i] = lines.peek('\2' .. names[i], 1)
      ids[i] = first[i][1] and lines.id_in(first[i][1]) or ''
    end
    lines.read(ids)
    read_rates(ids, redis.call('HMGET', k_jobs, unpack(ids)))
    local found, named_by, n = {}, {}, 0
    for i = 1, #names do
      local name = names[i]
      local rate, entries = rate_of(ids[i]) and rates[name], first[i]
      local count = rate and math.min(most - n, rate.burst, math.floor((now - rate.at) / rate.each) + 1) or most - n
      if #entries == 0 then
        gather('ZREM', k_opens, '\2' .. name)
      else
        waiting[name] = true
        if count > 1 then
          entries = lines.peek('\2' .. name, count)
        end
        for j = 1, math.min(count, #entries) do
          n = n + 1
          found[n], named_by[lines.id_in(entries[j])] = entries[j], name
        end
      end
      if n >= most then
        break
      end
    end
    lines.open(found, function(id, letter, due)
      returned[id] = true
      moved[id] = {letter = letter, due = due, name = named_by[id]}
    end)
  end

  -- Jobs that `open_rates` put into bands and that claim did not get to wait again. So a rate has no tokens for jobs that are not claimed.
  -- The last step, together with the notes about rates.
  local function close()
    for id, job in pairs(moved) do
      gather('ZREM', BANDS[job.letter], id)
      wait(id, job.letter, job.due, job.name)
    end
    for name in pairs(taken) do
      local rate = rates[name]
      gather('ZADD', k_rates, as_text('%.17g', rate.at + (rate.burst - 1) * rate.each), name)
    end
    for name in pairs(waiting) do
      gather('ZADD', k_opens, int(rates[name] and math.ceil(rates[name].at) or now), '\2' .. name)
    end
    taken, waiting = {}, {}
  end

  -- Puts held jobs whose time has come back into their bands, with their dates: at most `most`, and of rates at most `free`. claim decides
  -- about them. Returns whether jobs with a token wait for an idle thread.
  local function open(most, free)
    local found = redis.call('ZRANGEBYSCORE', k_opens, '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, most)
    local names, for_thread = {}, false
    for i = 1, #found, 2 do
      local line, at = found[i], tonumber(found[i + 1])
      local word = string.sub(line, 2)
      local value = string.byte(line) == 1 and redis.call('HGET', k_pauses, word)
      if string.byte(line) == 2 then
        if #names < free then
          names[#names + 1] = word
        else
          for_thread = true
        end
      elseif is_paused(value) then -- the clock was set back, or another program has written this
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
        local entries = lines.peek(line, count)
        lines.open(entries, function(id)
          returned[id] = true
        end)
        most = most - #entries
        if #entries < count then
          gather('HDEL', k_pauses, word)
          gather('ZREM', k_opens, line)
        else
          gather('HSET', k_pauses, word, 'r' .. int(pace))
          gather('ZADD', k_opens, int(pace == 0 and now or at + count * pace), line)
        end
      end
    end
    if #names > 0 and most > 0 then
      open_rates(names, math.min(most, free))
    end
    flush()
    return for_thread
  end

  limits = {
    read = read, paused = paused, hold = hold, open = open, close = close, has_token = has_token, take_token = take_token, rate_of = rate_of,
    wait = wait, returned = returned, moved = moved,
  }
end
