-- Every script begins here: the time, the actor, the event under construction.
-- ARGV[1] now in ms, '' for Redis' own clock (tests pass theirs) · ARGV[2] by, who did it · ARGV[3] why, may be ''
local now
if ARGV[1] == '' then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
else
  now = tonumber(ARGV[1])
end
local by, why = ARGV[2], ARGV[3]
local events, events_n = {}, 0

local function int(number)
  return string.format('%.0f', number)
end

-- Whether this can be the id of a job: 22 letters and digits that stand for at most 128 bits. Nothing else was written by us.
local function is_id(text)
  return #text == 22 and not string.find(text, '%W') and text <= '7n42DGM5Tflk9n8mt7Fhc7'
end

-- Adds one item to this call's event entry: kind -> "fields" or "fields\nbody".
local function event(kind, value)
  events[events_n + 1], events[events_n + 2] = kind, value
  events_n = events_n + 2
end

-- Appends the entry. One per call: a stream entry holds all items of the call (at most 200 jobs, two items each).
local function publish()
  if events_n == 0 then
    return
  end
  local head = why ~= '' and {'at', int(now), 'by', by, 'why', why} or {'at', int(now), 'by', by}
  for i = 1, events_n do
    head[#head + 1] = events[i]
  end
  local done = redis.pcall('XADD', k_events, '*', unpack(head))
  if type(done) == 'table' and done.err then
    -- Not a stream, or one whose ids have run out: somebody else wrote that. What has happened here must be told all the same.
    redis.call('UNLINK', k_events)
    redis.call('XADD', k_events, '*', unpack(head))
  end
end

-- Header of a record: "1 <lane> <o|r> <max attempts> <expires ms> <task> <key>\n". Returns lane, durable, expires, key, or nil.
local function header(record)
  local lane, safety, expires, key = string.match(record, '^1 ([hnl]) ([or]) %d+ (%d+) %S+ ([^\n]*)\n')
  if not lane then
    return nil
  end
  return lane, safety == 'o', tonumber(expires), key
end
