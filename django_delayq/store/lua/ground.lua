-- ground: no state changes; a store without a generation gets one
-- keys: meta
-- include: begin
-- ARGV: now by why, the generation for a store without one: two empty stores would look the same
-- Returns the ground as rows name it, and the last event that was dropped since the database has it ('' none).
-- O(1).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
redis.call('HSETNX', k_meta, 'generation', ARGV[4])
return {(generation or ARGV[4]) .. ':' .. (confirmed or ''), redis.call('HGET', k_meta, 'mirrored') or ''}
