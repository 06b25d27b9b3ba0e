-- Every script starts here: the time, the actor, and the event that it builds.
-- ARGV[1] now in ms, '' for Redis's clock (tests pass their time), '!' for that clock and to record the caller's format, see `present` · ARGV[2] by, the actor · ARGV[3] why, can be ''
local now, since = nil, 0 -- `since`: the fraction of a ms that has passed since `now`
local texts = {[0] = '0', '1'} -- of whole numbers, see `int`
local telling = ARGV[1] == '!'
if telling or ARGV[1] == '' then
  local seconds, us = unpack(redis.call('TIME'))
  local ms = us / 1000
  now = seconds * 1000 + math.floor(ms)
  since = ms % 1
  texts[now] = seconds .. string.sub('00000' .. us, -6, -4)
else
  now = tonumber(ARGV[1])
end
local by, why = ARGV[2], ARGV[3]

-- The values of these fields of a hash, in the same order; false for a missing one.
local function values_of(key, ...)
  return unpack(redis.call('HMGET', key, ...))
end

-- All values of meta are read in one call, because each call takes a good part of a short script's time. `confirmed`: the run of the
-- server that the mirror has confirmed last; all others have the names of their fields, see keys.py.
local format, generation, confirmed, rolled, armed, surplus, named, site =
  values_of(k_meta, 'format', 'generation', 'server', 'rolled', 'armed', 'surplus', 'named', 'site')

-- The queue of another site: nothing more is read, and nothing is written. SITE, which the loader writes above, is the id of the caller's
-- site. ACCEPTS: 'none' also accepts a queue without an id, because the script only reads; 'any' accepts any queue.
if site ~= SITE and ACCEPTS ~= 'any' and (site or ACCEPTS ~= 'none') then
  return redis.error_reply('SITE ' .. string.sub(string.gsub(site or '', '%W', '?'), 1, 64))
end

-- The format, 1 if the field is missing. The loader writes FORMAT, the newest known format, and SEEN above. In a newer format, nothing is
-- read or written.
format = tonumber(string.match(format or '', '^%d%d?%d?%d?$')) or 1 -- no release writes another value
if format > FORMAT then
  return redis.error_reply('FORMAT ' .. string.format('%.0f', format))
end

local events, events_n = {}, 0

-- Whole numbers as text, each formatted once: string.format takes a good part of a script's time, and most numbers repeat with every job.
local as_text = string.format
local function int(number)
  local text = texts[number]
  if not text then
    text = as_text('%.0f', number)
    if number == number then -- an invalid time can be "nan"
      texts[number] = text
    end
  end
  return text
end

-- Whether this can be the id of a job: 22 letters and digits that encode at most 128 bits. No other ids are written.
local function is_id(text)
  return #text == 22 and not string.find(text, '%W') and text <= '7n42DGM5Tflk9n8mt7Fhc7'
end

-- Adds one item to this call's event entry: kind -> "fields" or "fields\nbody".
local function event(kind, value)
  local n = events_n
  events[n + 1], events[n + 2] = kind, value
  events_n = n + 2
end

-- Appends the entry. One per call: a stream entry has all items of the call (at most 200 jobs, two items each). Returns its id; '' if
-- nothing changed.
local function publish()
  if events_n == 0 then
    return ''
  end
  local head = {'at', int(now), 'by', by, 'f', int(format)}
  if why ~= '' then
    head[7], head[8] = 'why', why
  end
  local first = #head
  for i = 1, events_n do
    head[first + i] = events[i]
  end
  local done = redis.pcall('XADD', k_events, '*', unpack(head))
  if done.err then
    -- Not a stream, or one without free ids: another program wrote it. The event still needs a stream. After any other
    -- error, such as a withdrawn permission, the stream stays.
    if string.find(done.err, 'WRONGTYPE') or string.find(done.err, ' ID') then
      redis.call('UNLINK', k_events)
    end
    done = redis.call('XADD', k_events, '*', unpack(head))
  end
  if events_n ~= 2 then
    redis.pcall('HINCRBY', k_meta, 'surplus', int(events_n / 2 - 1)) -- see untold.lua
  end
  return done
end

-- Records that a process of this release exists, if the caller asks for it: once a minute, and when replicas must confirm the call.
local function present()
  if telling then
    redis.call('HSET', k_meta, SEEN, int(now))
  end
end

-- Header of a record: "1<band><o|r>[<max attempts>[:<expires ms>]][@<scope>] <task>[ <key>]\n". Returns band, durable, expires, key,
-- task, scope ('' for none), or nil. With a scope, the key is the scope, U+2028 and the key. expires: math.huge for never. %f avoids
-- backtracking through a long text, and the numbers are parsed afterwards, because two runs of digits in one pattern would be tried in
-- every way. Jobs of one task without keys have the same first line, which is parsed once. Nothing is
-- cached for a record of a single line, or an invalid one.
local headers = {}
local function header(record)
  local stop = string.find(record, '\n')
  if not stop then
    return nil
  end
  local line = string.sub(record, 1, stop)
  local read = headers[line]
  if not read then
    local band, safety, most, scope, task, key = string.match(line, '^1([hnl])([or])([%d:]*)%f[@ ](@?%S*) (%S+)%f[%s] ?([^\n]*)\n')
    if not band or scope == '@' then
      return nil
    end
    scope = string.sub(scope, 2)
    local expires = string.match(most .. ':', '^%d*:(%d*):?$')
    if not expires then
      return nil
    end
    if scope ~= '' and key ~= '' then
      key = scope .. '\226\128\168' .. key
    end
    read = {band = band, durable = safety == 'o', expires = tonumber(expires) or math.huge, key = key, task = task, scope = scope}
    headers[line] = read
  end
  return read.band, read.durable, read.expires, read.key, read.task, read.scope
end
