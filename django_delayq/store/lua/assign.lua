-- assign: no state change; gives the queue to the caller's site
-- keys: jobs high normal low runs leases cancels progress keys claims failed finished events wake meta stats spread asks offered names holders blocked waiters pauses limits rates opens firsts locks lock_ends lock_waits unlocked workers asked
-- include: begin
-- ARGV: now by why, the id that the queue must have ('' none), the last event that the database has, if Redis is ahead of it ('' keeps
--   the noted one), '1' to remove all its data, the format with which the queue starts, if it has none ('' none)
-- Returns the current id of the queue, and the previous one ('' none).
-- O(1), and the keys that are removed.
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory
local expected, mirrored, emptied = ARGV[4], ARGV[5], ARGV[6] == '1'
local before = site or ''
if before ~= expected then
  return {before, before}
end
if emptied then
  redis.call('UNLINK', unpack(KEYS))
else
  redis.call('HDEL', k_meta, 'mirror_token') -- another database may have written it
  if mirrored ~= '' then
    redis.call('HSET', k_meta, 'mirrored', mirrored)
  end
end
redis.call('HSET', k_meta, 'site', SITE)
if (ARGV[7] or '') ~= '' then
  redis.call('HSETNX', k_meta, 'format', ARGV[7])
end
return {SITE, before}
