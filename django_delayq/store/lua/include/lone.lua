-- The usual call of schedule: one new job without a key, which meets nothing. It is answered here, before the other pieces are set up, which
-- takes longer than the job itself. All else goes on below, where nothing has been written yet: so what is said below is said of it, too,
-- and a test plays both against each other. The first write needs memory, as there. Needs nothing, and stands first.
do
  local now, by, why, limit, known_ground, id, record, date = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[7], ARGV[8], ARGV[10]
  local lane, safety = string.match(#ARGV == 11 and record or '', '^1([hnl])([or])%d* %S+\n')
  if lane and now ~= '!' and why == '' and string.sub(ARGV[6], 1, 3) ~= 'ask' and string.sub(ARGV[9], 1, 9) ~= 'replaced@' then
    if now == '' then
      local time = redis.call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
    else
      now = tonumber(now)
    end
    local due = tonumber(date)
    if not due then
      due = now + tonumber(ARGV[11])
      date = string.format('%.0f', due)
    end
    local meta = redis.call('HMGET', k_meta, 'format', 'generation', 'server', 'armed', 'surplus')
    local format, generation, armed, surplus = meta[1], meta[2], meta[4], tonumber(meta[5] or 0)
    local ground = (generation or '') .. ':' .. (meta[3] or '')
    if generation and (known_ground == '' or known_ground == ground)
      and (not format or (string.find(format, '^[1-9]$') and tonumber(format) <= FORMAT))
      and (not armed or due >= (tonumber(armed) or math.huge))
      and (limit <= 0 or (surplus and surplus >= 0 and redis.call('XLEN', k_events) + surplus < limit))
      and not redis.call('ZSCORE', k_finished, id) and redis.call('HSETNX', k_jobs, id, record) == 1
    then
      redis.call('ZADD', lane == 'n' and k_normal or lane == 'h' and k_high or k_low, date, id)
      redis.pcall('HINCRBY', k_stats, string.format('%.0f:scheduled', math.floor(now / 60000)), 1)
      local told = id .. ' ' .. date .. ' ' .. lane
      local entry = {'at', string.format('%.0f', now), 'by', by}
      if format then
        entry[5], entry[6] = 'f', format
      end
      entry[#entry + 1], entry[#entry + 2] = 'scheduled', safety == 'o' and told or (told .. '\n' .. record)
      if redis.pcall('XADD', k_events, '*', unpack(entry)).err then -- see publish in begin.lua
        redis.call('UNLINK', k_events)
        redis.call('XADD', k_events, '*', unpack(entry))
      end
      return {ground, 'created', id, date}
    end
  end
end
