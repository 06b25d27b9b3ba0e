-- The usual call of schedule: new jobs without conflicts, whose keys are free. It is answered before the other includes are set up, which
-- takes longer than scheduling one job. Every other call continues below, where nothing has been written yet. So the contract below also
-- applies here, and a test compares both paths. As there, the first write needs memory. Needs nothing, and comes first.
-- It is a block that `break` leaves, not a function, because creating a function with its variables takes time.
repeat
  local now, by, limit, known_epoch, mode = ARGV[1], ARGV[2], tonumber(ARGV[4]), ARGV[5], ARGV[6]
  local stride = string.byte(mode) == 110 and 5 or 4 -- an n: 'named'
  local items = (#ARGV - 6) / stride
  local asks = string.byte(mode, stride == 4 and 1 or 7) == 97 -- an a: 'ask'
  if items == 0 or now == '!' or ARGV[3] ~= '' then
    break
  end
  local stamp
  if now == '' then
    local time = redis.call('TIME')
    stamp = time[1] .. string.sub('00000' .. time[2], -6, -4) -- as text: string.format takes longer
    now = tonumber(stamp)
  else
    now = tonumber(now)
    stamp = string.format('%.0f', now)
  end
  local format, generation, server, armed, surplus, site, named = unpack(stride == 4
    and redis.call('HMGET', k_meta, 'format', 'generation', 'server', 'armed', 'surplus', 'site')
    or redis.call('HMGET', k_meta, 'format', 'generation', 'server', 'armed', 'surplus', 'site', 'named'))
  surplus = tonumber(surplus or 0)
  local epoch = (generation or '') .. ':' .. (server or '')
  if site ~= SITE or not generation or (known_epoch ~= '' and known_epoch ~= epoch)
    or (format and format ~= '1' and not (string.find(format, '^[2-9]$') and tonumber(format) <= FORMAT))
  then
    break
  end

  local earliest = -math.huge -- a job that is due before this wakes a mover, see wake_for in wake.lua
  if armed then
    earliest = tonumber(armed) or math.huge
    if now > earliest + 500 then
      earliest = math.huge
    end
  end
  local entry = {'at', stamp, 'by', by, 'f', format or '1', '', ''}
  local told = #entry - 2
  local ids, jobs, bands
  if items > 1 then -- otherwise the tables are not needed
    ids, jobs, bands = {}, {}, {h = {k_high, n = 1}, n = {k_normal, n = 1}, l = {k_low, n = 1}}
  end
  -- Most jobs of a call have the same header, and many the same date: these are parsed once.
  local id, record, policy, when, said, names, rated, fresh, line, band, safety, scope, key, date, due, score, fields
  local keys, taken
  for i = 1, items do
    id, record, policy, when, said = unpack(ARGV, 7 + (i - 1) * stride, 6 + i * stride)
    if not line or string.sub(record, 1, #line) ~= line then
      line, band, safety, scope, key = string.match(record, '^(1([hnl])([or])%d*:?%d*%f[@ ](@?%S*) %S+%f[%s] ?([^\n]*)\n)')
      if line and scope ~= '' then -- an @ and the scope, see header in begin.lua
        line = scope ~= '@' and line
        key = key ~= '' and string.sub(scope, 2) .. '\226\128\168' .. key or ''
      end
      date = nil
    end
    fresh = line and (policy == 'keep' or not string.find(policy, key == '' and '^replaced@' or '[@+]')) and not (ids and ids[id])
    if fresh and key ~= '' then
      keys, taken = keys or {}, taken or {}
      fresh = not taken[key]
      keys[#keys + 1], keys[#keys + 2], taken[key] = key, id, true
    end
    if fresh and when ~= date then
      date, due, score = when, tonumber(when), when
      if string.byte(when) == 43 then -- a plus: a delay
        due = now + due
        score = string.format('%.0f', due)
      end
      fields = ' ' .. score .. ' ' .. band
      fresh = due >= earliest
    end
    if not fresh then
      break
    end
    if ids then
      local dates = bands[band]
      local n = dates.n
      ids[i], ids[id], jobs[i * 2 - 1], jobs[i * 2] = id, true, id, record
      dates[n + 1], dates[n + 2], dates.n = score, id, n + 2
    end
    if said and said ~= '' then -- see lines.lua
      names = names or {}
      names[#names + 1], names[#names + 2] = id, (string.gsub(said, ':', ':0:0:', 1))
      rated = rated or string.find(said, '\2', 1, true)
      fresh = not string.find(said, '\3', 1, true) -- a fair word
      if not fresh then
        break
      end
    end
    entry[told + 1], entry[told + 2] = 'scheduled', safety == 'o' and (id .. fields) or (id .. fields .. '\n' .. record)
    told = told + 2
  end

  if fresh and keys then -- each must be free, and known to be: see must_ask in schedule.lua
    local rolled = redis.call('HGET', k_meta, 'rolled')
    if string.sub(mode, -4) ~= 'told' then
      local info = server and not rolled and redis.pcall('INFO', 'server')
      fresh = info and server == (type(info) == 'string' and string.match(info, 'run_id:(%w+)') or '')
    else
      fresh = rolled ~= 'sweep' or asks
    end
    for i = 1, fresh and #keys or 0, 2 do
      fresh = fresh and not redis.call('HGET', k_keys, keys[i])
    end
  end
  if fresh and limit > 0 then
    fresh = surplus and surplus >= 0 and redis.call('XLEN', k_events) + surplus < limit
  end
  if fresh and ids then
    local known, ended = redis.call('HMGET', k_jobs, unpack(ids)), redis.call('ZMSCORE', k_finished, unpack(ids))
    for i = 1, items do
      fresh = fresh and not known[i] and not ended[i]
    end
    if fresh and not asks then
      redis.call('HSET', k_jobs, unpack(jobs))
    end
  elseif fresh and asks then
    fresh = not redis.call('ZSCORE', k_finished, id) and redis.call('HEXISTS', k_jobs, id) == 0
  elseif fresh then
    fresh = not redis.call('ZSCORE', k_finished, id) and redis.call('HSETNX', k_jobs, id, record) == 1
  end
  if not fresh then
    break
  end
  if asks then
    return {epoch, stamp}
  end
  -- If Redis refuses a command here, only records remain, and a repeat schedules them: see nowhere.lua.
  if names then
    redis.call('HSET', k_names, unpack(names))
    if not named or (rated and named ~= '3') then
      redis.call('HSET', k_meta, 'named', rated and '3' or '1')
    end
  end
  if not ids then
    redis.call('ZADD', band == 'n' and k_normal or band == 'h' and k_high or k_low, score, id)
  else
    for _, dates in pairs(bands) do
      if dates.n > 1 then
        redis.call('ZADD', unpack(dates, 1, dates.n))
      end
    end
  end
  if keys then
    redis.call(ids and 'HSET' or 'HSETNX', k_keys, unpack(keys)) -- the same command as for the record
  end
  redis.pcall('HINCRBY', k_stats, string.format('%.0f:scheduled', math.floor(now / 60000)), items)
  local told_err = redis.pcall('XADD', k_events, '*', unpack(entry)).err
  if told_err then -- see publish in begin.lua
    if string.find(told_err, 'WRONGTYPE') or string.find(told_err, ' ID') then
      redis.call('UNLINK', k_events)
    end
    redis.call('XADD', k_events, '*', unpack(entry))
  end
  if items > 1 then
    redis.pcall('HINCRBY', k_meta, 'surplus', items - 1) -- see untold.lua
  end
  return {epoch, stamp}
until true
