-- counts: no state change and no write; sums the counts per minute of a queue for charts
-- keys: stats meta events
-- include: begin
-- ARGV: now by why, first minute, last minute (at most 240 minutes), minutes per step, then kinds
-- Returns per step and kind the sum of the counts; the last step may have fewer minutes.
-- O(minutes * kinds).
local first, last, step = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local reply = {}
for start = first, last, step do
  for kind = 7, #ARGV do
    local fields, sum = {}, 0
    for minute = start, math.min(start + step - 1, last) do
      fields[#fields + 1] = int(minute) .. ':' .. ARGV[kind]
    end
    local counts = redis.call('HMGET', k_stats, unpack(fields))
    for n = 1, #counts do
      sum = sum + (tonumber(counts[n] or '') or 0)
    end
    reply[#reply + 1] = sum > 0 and int(sum) or '0'
  end
end
return reply
