-- Lines of jobs that wait: for a concurrency name, for the end of a pause, for a token of their rate (limits.lua), or for the next turn of
-- their fair word. A concurrency name: only `most` jobs with the same name can hold a lease at a time (1: one after the other).
-- A name is held exactly as long as the lease of its job. A due job whose name is taken leaves its band, once, and waits. Whatever frees a
-- name puts the next job back into its band, with its date, and claim decides.
--   names: id -> most:turn:due:name, from schedule until its record is removed; turn: a number that increases with every holder, 0 before
--     the first; due: the date of its claim. A job with a rate has after it a byte 2 and tokens:ms:burst:rate, see limits.lua; then one with a
--     fair word a byte 3 and that word, and its due is its own date while it waits. most is 0 without a name
--   holders: name\0id, and <fair line>\0id · blocked: id by due ms, for jobs in a line; by the negative of it, for jobs that a pause or a rate
--     holds · waiters: the same as line\0<band><due>\0id, so in the order in which they return: band, date, id. line: the name; or a byte 1
--     and the paused word; or a byte 2 and the rate; or a byte 3 and <band><fair word>, then for a job with a rate a byte 2 and the rate.
--     No name contains a byte below 32.
-- A fair word: only one job of a fair line is in its band, the one with the turn; it is the holder of the line, also while it waits for a
-- token. All others wait in the line, also those that are not due yet. When it leaves the band, the next one comes: with the time as its
-- score if it is due, after all due jobs of other words, otherwise with its own date. So the jobs of words are taken in turns, however
-- many a word has. A job that is put back by a name or a pause has had its turn, or gets another.
-- Usually no job of a queue has ever had a name, see `named` in begin.lua. Then `lines` is nil, because creating its functions takes time.
-- Needs begin, bulk, bands and words, and the keys jobs high normal low meta names holders blocked waiters.
local lines

if named then
  local BAND_RANKS, RANKED = {h = '1', n = '2', l = '3', H = '1', N = '2', L = '3'}, {['1'] = 'h', ['2'] = 'n', ['3'] = 'l'}
  local values, read, begun, full, freed, doubtful, padded = {}, 0, {}, {}, {}, {}, {}
  local ended = {} -- the fair lines in `freed`, in order
  local fair = {older = 0} -- the functions for fair words: Lua allows 200 local variables
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
    local most, turn, due, name, rest = string.match(value or '', '^(%d+):(%d+):(%d+):([^%c]+)(.*)$')
    if not most or #most > 4 or #turn > 16 or #due > 15 or not string.find(rest .. '\2', '^[\2\3]') then
      return nil
    end
    return name, most == '1' and 1 or math.max(1, tonumber(most)), turn, due
  end

  -- Its rate, and what its task declares for it; nil without one.
  local function rate_of(id)
    if values[id] == nil then
      name_of(id)
    end
    local declared, rate = string.match(values[id] or '', '\2(%d+:%d+:%d+):([^%c]+)')
    return rate, declared
  end

  -- The line of its fair word; nil without one.
  local function fair_line(id, letter)
    if values[id] == nil then
      name_of(id)
    end
    local word = values[id] and string.match(values[id], '^%d+:%d+:%d+:.*\3([^%c]+)$')
    if word then
      local rate = rate_of(id)
      return '\3' .. BAND_RANKS[letter] .. word .. (rate and '\2' .. rate or '')
    end
  end

  -- It has just been given this value in `names`.
  function fair.given(id, value)
    values[id] = value
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

  -- The job with the turn, nil without one.
  function fair.holder(line)
    local entry = under_name(k_holders, line, 0, 1)[1]
    return entry and string.sub(entry, #line + 2)
  end

  -- It leaves its band, and no longer waits for a token. `write`: gather or redis.call.
  local function end_turn(id, line, write)
    write('ZREM', k_holders, line .. '\0' .. id)
    if not freed[line] then
      ended[#ended + 1] = line
      freed[line] = 1
    end
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
    local rest = values[id] and string.match(values[id], '[\2\3].*$') or ''
    gather('HSET', k_names, id, int(most) .. ':' .. int(turn) .. ':' .. int(date) .. ':' .. name .. rest)
    return turn
  end

  -- The date at which a job with a name was claimed, or the own date of one with a fair word. With a later date, it would come after the
  -- jobs that wait for that name.
  local function first_due(id)
    if values[id] == nil then
      name_of(id)
    end
    local due = tonumber(string.match(values[id] or '', '^%d+:%d+:(%d+):') or '')
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

  -- A job leaves its band and waits in that line. `write`: gather or redis.call.
  local function wait(id, letter, line, due, write)
    local since = math.max(1, due)
    write = write or gather
    write('ZADD', k_blocked, int(string.byte(line) < 3 and -since or since), id)
    write('ZADD', k_waiters, '0', waiter(id, letter, since, line))
  end

  -- Removes a job from the line in which it waits with that score. `kept`: an entry that stays.
  function fair.leave_line(id, letter, due, kept)
    local name, entries = name_of(id), {}
    if due < 0 then
      for _, word in ipairs(words_of(redis.call('HGET', k_jobs, id) or '', name)) do
        entries[#entries + 1] = waiter(id, letter, -due, '\1' .. word)
      end
      local rate = rate_of(id)
      if rate then
        entries[#entries + 1] = waiter(id, letter, -due, '\2' .. rate)
      end
    else
      local line = fair_line(id, letter)
      entries[1] = name and waiter(id, letter, due, name)
      entries[#entries + 1] = line and waiter(id, letter, due, line)
    end
    for i = 1, #entries do
      if entries[i] ~= kept then
        redis.call('ZREM', k_waiters, entries[i])
      end
    end
  end

  -- Ends the wait of a job in a line. Returns whether it waited.
  local function unblock(id, letter)
    local due = tonumber(redis.call('ZSCORE', k_blocked, id) or '')
    if not due then
      return false
    end
    redis.call('ZREM', k_blocked, id)
    fair.leave_line(id, letter, due)
    return true
  end

  -- The same for a job without a record, so without the band to return to.
  local function forget_waiter(id)
    local due, name = tonumber(redis.call('ZSCORE', k_blocked, id) or ''), name_of(id)
    if due and name then
      redis.call('ZREM', k_blocked, id)
      redis.call('ZREM', k_waiters, waiter(id, 'h', due, name), waiter(id, 'n', due, name), waiter(id, 'l', due, name))
    end
    for letter in pairs(due and fair_line(id, 'h') and {h = 1, n = 1, l = 1} or {}) do
      local line = fair_line(id, letter)
      redis.call('ZREM', k_blocked, id)
      redis.call('ZREM', k_waiters, waiter(id, letter, math.abs(due), line))
      end_turn(id, line, redis.call)
    end
  end

  -- The date of a waiting job, in its band or in a line; nil if it does not wait.
  local function date_of(id, letter)
    local date = tonumber(redis.call('ZSCORE', BANDS[letter], id) or redis.call('ZSCORE', k_blocked, id) or '')
    return date and (fair_line(id, letter) and first_due(id) or math.abs(date))
  end

  -- Removes a job from where it waits. Returns whether it waited.
  local function withdraw(id, letter)
    local waited = redis.call('ZREM', BANDS[letter], id) == 1 or unblock(id, letter)
    if waited then
      left(id)
      local line = fair_line(id, letter)
      if line then
        end_turn(id, line, redis.call)
      end
    end
    return waited
  end

  -- The score of a due job that gets the turn: the time, with its fraction, so that it comes after those that have got theirs; and not
  -- in the future. `place`: of those that get it in one call, up to 400. 1/4096 is the last bit of such a number. A claim of jobs that have
  -- been due for `fair.older` ms does not make them wait that long again.
  function fair.score(date, place)
    local at = date <= now - fair.older and now - fair.older or now
    return as_text('%.6f', at - 1 + math.floor(since * 3600 + place) / 4096)
  end

  function fair.note_date(id, due)
    values[id] = string.gsub(values[id], '^(%d+:%d+:)%d+', '%1' .. int(math.max(1, due)), 1)
    redis.call('HSET', k_names, id, values[id])
  end

  -- Whether the job with the turn is not due, and gives its place to one with an earlier date. Its own date can be an earlier one still, if
  -- the clock was set back.
  function fair.gives_way(holder, letter, line, due)
    local date = tonumber(redis.call('ZSCORE', BANDS[letter], holder) or '')
    if not date and (tonumber(redis.call('ZSCORE', k_blocked, holder) or '') or 0) >= 0 then -- only tidy could know why
      redis.call('ZREM', k_holders, line .. '\0' .. holder)
      return true
    elseif not date or date <= now or date <= due then
      return false
    end
    wait(holder, letter, line, first_due(holder) or date, redis.call)
    redis.call('ZREM', BANDS[letter], holder)
    redis.call('ZREM', k_holders, line .. '\0' .. holder)
    return true
  end

  -- Puts a job that waits nowhere into its band, or into the line of its fair word. Returns its date, if it is in its band. `write`:
  -- gather or redis.call, for jobs without a fair word.
  local function put(id, letter, due, write)
    local line = fair_line(id, letter)
    if not line then
      write('ZADD', BANDS[letter], int(due), id)
      return due
    end
    fair.note_date(id, due)
    local holder = fair.holder(line)
    if holder ~= id and (not holder and freed[line] or holder and not fair.gives_way(holder, letter, line, due)) then
      wait(id, letter, line, due, redis.call) -- without a holder, `call` chooses the first
      return nil
    end
    redis.call('ZADD', BANDS[letter], due <= now and fair.score(due, 0) or int(due), id)
    redis.call('ZADD', k_holders, '0', line .. '\0' .. id)
    return due
  end

  -- Gives a waiting job another date. It no longer waits in a line, and another job may be next. Returns its date, if it is in its band
  -- now; `call` decides about a job with a fair word.
  function fair.move(id, letter, due)
    local line = fair_line(id, letter)
    if not line then
      redis.call('ZADD', BANDS[letter], int(due), id)
      unblock(id, letter)
      left(id)
      return due
    end
    local before = tonumber(redis.call('ZSCORE', k_blocked, id) or '')
    wait(id, letter, line, due, redis.call)
    if before then
      fair.leave_line(id, letter, before, waiter(id, letter, math.max(1, due), line))
    end
    redis.call('ZREM', BANDS[letter], id)
    fair.note_date(id, due)
    left(id)
    end_turn(id, line, redis.call)
    local holder = fair.holder(line)
    if holder then
      fair.gives_way(holder, letter, line, due)
    end
  end

  -- The next jobs of a fair word, in order, unless one has the turn: the first one with the turn; of the others, at most `most` in all, only
  -- due ones. These are claimed by this call, one of each word after the other. A job with a name or a rate comes alone, because it may
  -- wait for these, and a word could otherwise fill that line. Returns the date of the first one.
  function fair.call(line, most, place)
    if fair.holder(line) then
      return nil
    end
    local first, rounds, seen, dropped = nil, 0, 0, 0
    most = string.find(line, '\2', 2, true) and 1 or most
    repeat
      local found = under_name(k_waiters, line, seen, rounds == 0 and dropped > 0 and 200 or most)
      for i = 1, #found do
        local rank, due, id = string.match(string.sub(found[i], #line + 2), '^([123])(%d+)%z(.+)$')
        local date = tonumber(due)
        if rounds > 0 and (rounds >= most or not id or date > now or name_of(id)) then
          return first
        end
        gather('ZREM', k_waiters, found[i])
        if id and redis.call('HEXISTS', k_jobs, id) == 1 and redis.call('ZREM', k_blocked, id) == 1 then
          gather('ZADD', BANDS[RANKED[rank]], date > now and int(date) or fair.score(date, rounds * #ended + place), id)
          if rounds == 0 then
            gather('ZADD', k_holders, '0', line .. '\0' .. id)
            first = date
            most = name_of(id) and 1 or most
          end
          rounds = rounds + 1
        else
          dropped = dropped + 1
        end
      end
      seen = seen + #found
    until #found == 0 or rounds > 0 or dropped >= 1000
    return first
  end

  -- Whether a job that waits with that score does so for its turn. Returns the job with the turn, too.
  function fair.waits(id, letter, due)
    local line = fair_line(id, letter)
    local waits = line and redis.call('ZSCORE', k_waiters, waiter(id, letter, due, line))
    return waits, waits and fair.holder(line)
  end

  -- Whether a fair word may have a next job: `call` puts it into its band.
  function fair.any()
    return #ended > 0
  end

  -- The last step of a call with names, after all other writes. For each freed name, puts back as many jobs as places were freed, in order.
  -- One job of each freed fair word gets the turn; `room`: so many jobs of all of them can be claimed in this call.
  -- So a name with room has a job in a band, if it has any. Entries of jobs that no longer wait are removed and not counted, at most
  -- MOST_DROPPED per call; tidy handles the rest. Returns the earliest of their dates, nil without any.
  local MOST_DROPPED = 1000
  local function call(room)
    local earliest
    if next(freed) and redis.call('ZCARD', k_blocked) > 0 then -- usually no job waits
      begun, full, held = {}, {}, false
      local called, dropped = 0, 0
      for name, places in pairs(freed) do
        local seen, most_read = 0, places -- usually the first read is the last
        repeat
          if string.byte(name) == 3 then
            break
          end
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
              called, places = called + 1, places - 1
            else
              dropped = dropped + 1
            end
          end
          local all = #found < most_read
          seen, most_read = seen + #found, 200
        until places == 0 or all or dropped >= MOST_DROPPED
      end
      for place, line in ipairs(ended) do
        local date = fair.call(line, math.max(1, math.floor(((room or 1) - called) / #ended)), place)
        earliest = date and math.min(earliest or date, date) or earliest
      end
      flush()
    end
    freed, doubtful, begun, full, held, ended = {}, {}, {}, {}, nil, {}
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
  -- date of each job that returns. All are looked up at once. A job whose name was read has a record. A job with a fair word that returns
  -- from a pause waits for its turn.
  local function open(found, tell)
    local ids, paused = {}, found[1] and string.byte(found[1]) == 1
    for i = 1, #found do
      ids[i] = id_in(found[i])
    end
    if paused then
      read_all(ids)
    end
    local since = #ids > 0 and redis.call('ZMSCORE', k_blocked, unpack(ids))
    for i = 1, #ids do
      local rank, due, id = string.match(found[i], '^[^%z]*%z([123])(%d+)%z([^%z]+)$')
      gather('ZREM', k_waiters, found[i])
      if id and since[i] and (values[id] or redis.call('HEXISTS', k_jobs, id) == 1) then
        if paused and fair_line(id, RANKED[rank]) then
          redis.call('ZREM', k_blocked, id)
          put(id, RANKED[rank], tonumber(due))
        else
          gather('ZADD', BANDS[RANKED[rank]], due, id)
          gather('ZREM', k_blocked, id)
        end
        tell(id, RANKED[rank], tonumber(due))
      end
    end
  end

  lines = {
    read = read_all, of = name_of, rate_of = rate_of, forget = forget, has_room = has_room, count = count, note_freed = note_freed,
    left = left, hold = hold, first_due = first_due, free = free, wait = wait, unblock = unblock, forget_waiter = forget_waiter,
    date_of = date_of, withdraw = withdraw, move = fair.move, call = call, peek = peek, id_in = id_in, open = open, put = put,
    fair_line = fair_line, given = fair.given, end_turn = end_turn, any_turn = fair.any, waits_for_turn = fair.waits,
    fair = fair,
  }
end
