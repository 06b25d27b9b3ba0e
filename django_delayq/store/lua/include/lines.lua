-- Lines of due jobs that wait: for a concurrency name, for the end of a pause, or for a token of their rate (limits.lua). A concurrency
-- name: only `most` jobs with the same name can hold a lease at a time (1: one after the other).
-- A name is held exactly as long as the lease of its job. A due job whose name is taken leaves its band, once, and waits. Whatever frees a
-- name puts the next job back into its band, with its date, and claim decides.
--   names: id -> most:turn:due:name, from schedule until its record is removed; turn: a number that increases with every holder, 0 before
--     the first; due: the date of its claim. A job with a rate has after it a byte 2 and tokens:ms:burst:rate, see limits.lua; most is 0
--     without a name
--   holders: name\0id · blocked: id by due ms, for jobs in a line; by the negative of it, for jobs that a pause or a rate holds · waiters:
--     the same as line\0<band><due>\0id, so in the order in which they return: band, date, id. line: the name; or a byte 1 and the paused
--     word; or a byte 2 and the rate. No name contains a byte below 32.
-- Usually no job of a queue has ever had a name, see `named` in begin.lua. Then `lines` is nil, because creating its functions takes time.
-- Needs begin, bulk, bands and words, and the keys jobs high normal low meta names holders blocked waiters.
local lines

if named then
  local BAND_RANKS, RANKED = {h = '1', n = '2', l = '3', H = '1', N = '2', L = '3'}, {['1'] = 'h', ['2'] = 'n', ['3'] = 'l'}
  local values, read, begun, full, freed, doubtful, padded = {}, 0, {}, {}, {}, {}, {}
  local held -- the number of holders of each name, if all were read at once

  -- Reads the names of these jobs at once, unless they were read.
  local function read_all(ids)
    local missing, n = {}, 0
    for i = 1, #ids do
      if values[ids[i]] == nil then
        n = n + 1
        missing[n] = ids[i]
      end
    end
    local found = n > 0 and redis.call('HMGET', k_names, unpack(missing))
    for i = 1, n do
      values[missing[i]] = found[i]
    end
    read = read + n
  end

  -- Name, most, and as text turn and date of a job; nil without a name, or with an invalid one.
  local function name_of(id)
    local value = values[id]
    if value == nil then
      value = redis.call('HGET', k_names, id)
      values[id] = value
    end
    local most, turn, due, name, rate = string.match(value or '', '^(%d+):(%d+):(%d+):([^%c]+)(.*)$')
    if not most or #most > 4 or #turn > 16 or #due > 15 or (rate ~= '' and string.byte(rate) ~= 2) then
      return nil
    end
    return name, most == '1' and 1 or math.max(1, tonumber(most)), turn, due
  end

  -- Its rate, and what its task declares for it; nil without one.
  local function rate_of(id)
    if values[id] == nil then
      name_of(id)
    end
    local declared, rate = string.match(values[id] or '', '\2(%d+:%d+:%d+):([^%c]+)$')
    return rate, declared
  end

  -- Its record is removed, together with its name.
  local function forget(id)
    values[id] = false
    redis.call('HDEL', k_names, id)
  end

  -- The entries of a name in `holders` or `waiters`, after the first `skipped`; at most `count`.
  local function under_name(key, name, skipped, count)
    return redis.call('ZRANGE', key, '[' .. name .. '\0', '(' .. name .. '\1', 'BYLEX', 'LIMIT', int(skipped), int(count))
  end

  -- The number of holders of each name, unless there are eight times as many holders as jobs whose names were read: looking up one takes as
  -- long as reading eight.
  local function read_holders()
    held = false
    if redis.call('ZCARD', k_holders) <= 8 * read then
      held = {}
      local members = redis.call('ZRANGE', k_holders, 0, -1)
      for i = 1, #members do
        local member = members[i]
        local stop = string.find(member, '\0', 1, true)
        local name = stop and string.sub(member, 1, stop - 1) or ''
        held[name] = (held[name] or 0) + 1
      end
    end
  end

  -- Whether fewer than that many hold it. A full name is read once per call. Gathered writes to holders must be sent before.
  local function has_room(name, most)
    if most <= (full[name] or 0) then
      return false
    end
    if held == nil then
      read_holders()
    end
    local room = most - (begun[name] or 0)
    local taken
    if held then
      taken = (held[name] or 0) >= room
    else
      taken = room <= 0 or #under_name(k_holders, name, room - 1, 1) > 0
    end
    if taken then
      full[name] = most
      return false
    end
    return true
  end

  -- One holder more, whose write is gathered.
  local function count(name)
    begun[name] = (begun[name] or 0) + 1
  end

  -- One holder less: see call.
  local function note_freed(name)
    freed[name] = (freed[name] or 0) + 1
  end

  -- A job leaves its band or its line, and starts no run. It might have been the next of its name.
  local function left(id)
    local name = name_of(id)
    if name then
      doubtful[name] = true
      note_freed(name)
    end
  end

  -- The run of a job starts: it was claimed at that date under that name, or (without these) taken over. Returns its turn: the time in µs,
  -- so that it also increases over a wipe; or more. Jobs of one call have the same turn, unless they share a name.
  local first, last
  local turns = {}
  local function hold(id, date, name, most)
    if not name then
      local _, due
      name, most, _, due = name_of(id)
      if not name then
        return nil
      end
      date = tonumber(due)
    else
      count(name)
    end
    if not first then
      last = redis.call('HGET', k_meta, 'turn') or ''
      last = #last < 17 and tonumber(string.match(last, '^%d+$')) or 0 -- otherwise the value is invalid
      first = math.max(last + 1, now * 1000)
    end
    local turn = turns[name] or first
    turns[name], last = turn + 1, math.max(last, turn)
    gather('ZADD', k_holders, '0', name .. '\0' .. id)
    local rate = values[id] and string.match(values[id], '\2.*$') or ''
    gather('HSET', k_names, id, int(most) .. ':' .. int(turn) .. ':' .. int(date) .. ':' .. name .. rate)
    return turn
  end

  -- The date at which a job with a name was claimed. With a later date, it would come after the jobs that wait for that name.
  local function first_due(id)
    local name, _, _, due = name_of(id)
    due = name and tonumber(due)
    return due and due > 0 and due
  end

  local function free(id)
    local name = name_of(id)
    if name then
      gather('ZREM', k_holders, name .. '\0' .. id)
      note_freed(name)
    end
  end

  local function waiter(id, letter, due, name)
    local date = padded[due] -- many jobs have the same
    if not date then
      date = as_text('%015.0f', due)
      padded[due] = date
    end
    return name .. '\0' .. BAND_RANKS[letter] .. date .. '\0' .. id
  end

  -- A due job leaves its band and waits in that line.
  local function wait(id, letter, line, due)
    local since = math.max(1, due)
    gather('ZADD', k_blocked, int(string.byte(line) < 32 and -since or since), id)
    gather('ZADD', k_waiters, '0', waiter(id, letter, since, line))
  end

  -- Ends the wait of a job in a line. Returns whether it waited.
  local function unblock(id, letter)
    local due = tonumber(redis.call('ZSCORE', k_blocked, id) or '')
    if not due then
      return false
    end
    redis.call('ZREM', k_blocked, id)
    local name = name_of(id)
    if due < 0 then
      for _, word in ipairs(words_of(redis.call('HGET', k_jobs, id) or '', name)) do
        redis.call('ZREM', k_waiters, waiter(id, letter, -due, '\1' .. word))
      end
      local rate = rate_of(id)
      if rate then
        redis.call('ZREM', k_waiters, waiter(id, letter, -due, '\2' .. rate))
      end
    elseif name then
      redis.call('ZREM', k_waiters, waiter(id, letter, due, name))
    end
    return true
  end

  -- The same for a job without a record, so without the band to return to.
  local function forget_waiter(id)
    local due, name = tonumber(redis.call('ZSCORE', k_blocked, id) or ''), name_of(id)
    if due and name then
      redis.call('ZREM', k_blocked, id)
      redis.call('ZREM', k_waiters, waiter(id, 'h', due, name), waiter(id, 'n', due, name), waiter(id, 'l', due, name))
    end
  end

  -- The date of a waiting job, in its band or in a line; nil if it does not wait.
  local function date_of(id, letter)
    local date = tonumber(redis.call('ZSCORE', BANDS[letter], id) or redis.call('ZSCORE', k_blocked, id) or '')
    return date and math.abs(date)
  end

  -- Removes a job from where it waits. Returns whether it waited.
  local function withdraw(id, letter)
    local waited = redis.call('ZREM', BANDS[letter], id) == 1 or unblock(id, letter)
    if waited then
      left(id)
    end
    return waited
  end

  -- A waiting job has another date in its band now. It no longer waits in a line, and another job may be next.
  local function moved(id, letter)
    unblock(id, letter)
    left(id)
  end

  -- The last step of a call with names, after all other writes. For each freed name, puts back as many jobs as places were freed, in order.
  -- So a name with room has a job in a band, if it has any. Entries of jobs that no longer wait are removed and not counted, at most
  -- MOST_DROPPED per call; tidy handles the rest. Returns the earliest of their dates, nil without any.
  local MOST_DROPPED = 1000
  local function call()
    local earliest
    if next(freed) and redis.call('ZCARD', k_blocked) > 0 then -- usually no job waits
      begun, full, held = {}, {}, false
      local dropped = 0
      for name, places in pairs(freed) do
        local seen, most_read = 0, places -- usually the first read is the last
        repeat
          local found = under_name(k_waiters, name, seen, most_read)
          for i = 1, #found do
            local rank, due, id = string.match(string.sub(found[i], #name + 2), '^([123])(%d+)%z(.+)$')
            local exists = id and redis.call('HEXISTS', k_jobs, id) == 1
            if exists and doubtful[name] and redis.call('ZSCORE', k_blocked, id) then
              local _, most = name_of(id)
              if most and not has_room(name, most) then
                places = 0
              elseif most then
                count(name)
              end
            end
            if places == 0 then
              break
            end
            gather('ZREM', k_waiters, found[i])
            if id and redis.call('ZREM', k_blocked, id) == 1 and exists then
              gather('ZADD', BANDS[RANKED[rank]], due, id)
              earliest = math.min(earliest or math.huge, tonumber(due))
              places = places - 1
            else
              dropped = dropped + 1
            end
          end
          local all = #found < most_read
          seen, most_read = seen + #found, 200
        until places == 0 or all or dropped >= MOST_DROPPED
      end
      flush()
    end
    freed, doubtful, begun, full, held = {}, {}, {}, {}, nil
    if last then
      redis.call('HSET', k_meta, 'turn', int(last))
    end
    return earliest
  end

  -- The first entries of a line, at most `most`.
  local function peek(line, most)
    return under_name(k_waiters, line, 0, most)
  end

  -- The id in an entry of a line; '' for an invalid one.
  local function id_in(entry)
    return string.match(entry, '%z([^%z]+)$') or ''
  end

  -- Puts the jobs of these entries of lines back into their bands, and drops entries of jobs that no longer wait. `tell`: gets id, letter and
  -- date of each job that returns. All are looked up at once. A job whose name was read has a record.
  local function open(found, tell)
    local ids = {}
    for i = 1, #found do
      ids[i] = id_in(found[i])
    end
    local since = #ids > 0 and redis.call('ZMSCORE', k_blocked, unpack(ids))
    for i = 1, #ids do
      local rank, due, id = string.match(found[i], '^[^%z]*%z([123])(%d+)%z([^%z]+)$')
      gather('ZREM', k_waiters, found[i])
      if id and since[i] and (values[id] or redis.call('HEXISTS', k_jobs, id) == 1) then
        gather('ZADD', BANDS[RANKED[rank]], due, id)
        gather('ZREM', k_blocked, id)
        tell(id, RANKED[rank], tonumber(due))
      end
    end
  end

  lines = {
    read = read_all, of = name_of, rate_of = rate_of, forget = forget, has_room = has_room, count = count, note_freed = note_freed,
    left = left, hold = hold, first_due = first_due, free = free, wait = wait, unblock = unblock, forget_waiter = forget_waiter,
    date_of = date_of, withdraw = withdraw, moved = moved, call = call, peek = peek, id_in = id_in, open = open,
  }
end
