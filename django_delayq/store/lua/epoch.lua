-- epoch: no state change; gives a generation to a store that has none
-- keys: meta
-- include: begin
-- ARGV: now by why, the generation for a store without one: two empty stores would look the same
-- Returns the epoch as rows name it, the last event that was dropped since the database has it ('' none), and the token of the last turn of
--   the mirror, see site.py.
-- O(1).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
redis.call('HSETNX', k_meta, 'generation', ARGV[4])
local mirrored, token = values_of(k_meta, 'mirrored', 'mirror_token')
return {(generation or ARGV[4]) .. ':' .. (confirmed or ''), mirrored or '', token or ''}
