-- limit: no state change; pauses jobs by task or concurrency name, or lets them run again
-- keys: pauses opens finished events wake meta
-- include: begin tries wake
-- ARGV: now by why, then per change (at most 200): kind word value
--   word: see words.lua
--   kind: pause, value: ms until which, 0 for no end; resume, value: ms between the jobs that return, 0 for as many as are claimed
-- Returns per change: 1 if it changed something, otherwise 0: the word is in that state, or a resumed one is not paused.
-- Writes no event: nothing visible has changed, and the database keeps who has paused what.
-- O(log N) per change.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
try_writes()
present()
local reply, earliest = {}, nil
for i = 4, #ARGV, 3 do
  local kind, word, value = unpack(ARGV, i, i + 2)
  local line, before, date = '\1' .. word, redis.call('HGET', k_pauses, word), tonumber(value)
  if kind == 'resume' then
    value, date = 'r' .. value, now
  end
  local changes = value ~= before and (before or kind == 'pause')
  if changes then
    if date == 0 then
      redis.call('ZREM', k_opens, line)
    else
      redis.call('ZADD', k_opens, int(date), line)
      earliest = math.min(earliest or date, date)
    end
    redis.call('HSET', k_pauses, word, value)
    redis.call('HSET', k_meta, 'named', '2')
  end
  reply[#reply + 1] = changes and 1 or 0
end
wake_for(earliest, armed)
return reply
