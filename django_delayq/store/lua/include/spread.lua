-- Charts: how many jobs ended, how late their last runs started, and how long these took. Counts per five minutes are in a string of
-- fixed length, with 14 slots of 66 numbers of 32 bits: the number of the five minutes; 25 counts of lateness; 25 of run times; and per
-- minute how many succeeded, failed and were retried. Each call sends one command for all its jobs. It is a string because it is read as a
-- whole: reading each field of a hash is slower. See spread.py.
local LATE, RAN, WIDTH, BUCKETS = 1, 26, 66, 25 -- the position of the counts in a slot, its length, and the buckets of each measure
local spread_counts = {}

-- Counts the last run of a job. `times`: bucket of its lateness * 25 + bucket of its run time; '' if the run was not timed.
local function spread(times)
  if times ~= '' then
    for _, at in ipairs({LATE + math.floor(times / BUCKETS), RAN + times % BUCKETS}) do
      spread_counts[at] = (spread_counts[at] or 0) + 1
    end
  end
end

-- `count`: the number of jobs of this call that ended, by kind; other kinds are ignored.
local function write_spread(count)
  local number = math.floor(now / 300000)
  local base = number % 14 * WIDTH
  local command = {'BITFIELD', k_spread, 'OVERFLOW', 'SAT', 'SET', 'u32', '#' .. base, int(number)}
  local c = 8
  for at, n in pairs(spread_counts) do
    command[c + 1], command[c + 2], command[c + 3], command[c + 4] = 'INCRBY', 'u32', '#' .. (base + at), n
    c = c + 4
  end
  local minute = math.floor(now / 60000) % 5
  for kind, n in pairs(count) do
    local at = kind == 'succeeded' and 51 or kind == 'failed' and 56 or kind == 'retried' and 61
    if at then
      command[c + 1], command[c + 2], command[c + 3], command[c + 4] = 'INCRBY', 'u32', '#' .. (base + at + minute), n
      c = c + 4
    end
  end
  if c == 8 then
    return
  end
  local reply = redis.pcall(unpack(command))
  local held = reply[1] -- the number of the five minutes in this slot
  if reply.err then -- not a string, or an invalid one: the rest of this call continues
    redis.call('UNLINK', k_spread)
  elseif held ~= number then -- the slot still had data from an hour ago or more
    redis.call('SETRANGE', k_spread, base * 4 + 4, string.rep('\0', WIDTH * 4 - 4))
    redis.call(unpack(command))
  end
end
