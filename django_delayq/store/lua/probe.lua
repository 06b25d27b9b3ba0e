-- probe: no job changes; tries commands on separate keys and removes these
-- keys: meta probe_hash probe_zset probe_stream probe_list probe_text
-- include:
-- ARGV: the commands, each as words with a space between them; @hash, @zset, @stream, @list and @text stand for the keys. The first one
--   removes these keys: if it is refused, no other one is tried.
-- Returns of each command that was answered with an error its number and the error.
-- O(N) of the commands.
local keys = {
  ['@hash'] = k_probe_hash,
  ['@zset'] = k_probe_zset,
  ['@stream'] = k_probe_stream,
  ['@list'] = k_probe_list,
  ['@text'] = k_probe_text,
}
local site = redis.pcall('HGET', k_meta, 'site') -- not by begin.lua, since this command, too, may be refused
if type(site) == 'string' and site ~= SITE then
  return redis.error_reply('SITE ' .. string.sub(string.gsub(site, '%W', '?'), 1, 64))
end
local refused = {}
local function try(number)
  local words = {}
  for word in string.gmatch(ARGV[number], '%S+') do
    words[#words + 1] = keys[word] or word
  end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = number
    refused[#refused + 1] = reply.err
  end
end
try(1)
if #refused == 0 then
  for number = 2, #ARGV do
    try(number)
  end
  redis.pcall('UNLINK', k_probe_hash)
  redis.pcall('UNLINK', k_probe_zset)
  redis.pcall('UNLINK', k_probe_stream)
  redis.pcall('UNLINK', k_probe_list)
  redis.pcall('UNLINK', k_probe_text)
end
return refused
