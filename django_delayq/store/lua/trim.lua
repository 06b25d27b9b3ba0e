-- trim: no state change; removes the events that the database has, and records how far the mirror has come
-- keys: events meta
-- include: begin epoch position untold
-- ARGV: now by why, the stream id up to which they are removed, the run of the server from which they were read ('' for any), the number
--   of jobs in the entries that the mirror has read, beyond one each, the token that this turn of the mirror found ('' none), the token that
--   it has committed ('' none), see site.py
-- Returns nothing. If another turn has written its token since, it does nothing. On another server it does nothing either, because that may
--   have older data, and noting the database's position there would hide this.
-- O(log N) and the events that are removed.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local upto, read_from, taken_in, found, token = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8]
if read_from ~= '' and read_from ~= server() then
  return
end
local known, surplus = values_of(k_meta, 'mirror_token', 'surplus')
known = string.match(known or '', '^%d+%-%x+$') or ''
if known ~= found and known ~= token then
  return
end
note_mirrored(upto)
local ms, number = position(upto)
redis.call('XTRIM', k_events, 'MINID', int(ms) .. '-' .. int(number + 1))
local left = surplus_of((tonumber(surplus or '') or 0) - taken_in, redis.call('XLEN', k_events))
if token == known then
  redis.call('HSET', k_meta, 'surplus', int(left))
else
  redis.call('HSET', k_meta, 'surplus', int(left), 'mirror_token', token)
end
