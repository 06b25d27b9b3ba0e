-- limit: no state change; pauses jobs by task or concurrency name, or lets them run again; sets rates
-- keys: pauses limits opens finished events wake meta
-- include: begin tries wake
-- ARGV: now by why, then per change (at most 200): kind word value
--   word: see words.lua
--   kind: pause, value: ms until which, 0 for no end; resume, value: ms between the jobs that return, 0 for as many as are claimed; rate:
--     the word is the name of a rate, value: tokens:ms:burst, '' for the one that tasks declare; or it is a byte 1 and a task, value: the
--     one that its newest code declares, or "none"
-- Returns per change: 1 if it changed something, otherwise 0: the word is in that state, or a resumed one is not paused.
-- Writes no event: nothing visible has changed, and the database keeps who has paused or set what.
-- O(log N) per change; of the code of a task, O(M log M), M: the rates that jobs wait for.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
try_writes()
present()
local reply, earliest = {}, nil
for i = 4, #ARGV, 3 do
  local kind, word, value = unpack(ARGV, i, i + 2)
  local date, changes = tonumber(value), false
  if kind == 'rate' then
    changes = value ~= (redis.call('HGET', k_limits, word) or '')
    if changes and value == '' then
      redis.call('HDEL', k_limits, word)
    elseif changes then
      redis.call('HSET', k_limits, word, value)
    end
    local mine = string.byte(word) == 1 and redis.call('ZRANGE', k_opens, 0, -1) or {'\2' .. word}
    for j = 1, changes and #mine or 0 do
      if string.byte(mine[j]) == 2 and redis.call('ZSCORE', k_opens, mine[j]) then
        redis.call('ZADD', k_opens, int(now), mine[j])
        earliest = now
      end
    end
  else
    local line, before = '\1' .. word, redis.call('HGET', k_pauses, word)
    if kind == 'resume' then
      value, date = 'r' .. value, now
    end
    changes = value ~= before and (before or kind == 'pause')
    if changes then
      if date == 0 then
        redis.call('ZREM', k_opens, line)
      else
        redis.call('ZADD', k_opens, int(date), line)
        earliest = math.min(earliest or date, date)
      end
      redis.call('HSET', k_pauses, word, value)
      if named ~= '3' then
        redis.call('HSET', k_meta, 'named', '2')
      end
    end
  end
  reply[#reply + 1] = changes and 1 or 0
end
wake_for(earliest, armed)
return reply
