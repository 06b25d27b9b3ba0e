-- The words by which the jobs of a queue can be paused: task:<task> and name:<concurrency name>. See limits.lua.
local words_of

if named then
  -- The words of a job; `name`: its concurrency name, if it has one. None for an unreadable record.
  function words_of(record, name)
    if not header(record) then
      return {}
    end
    local words = {'task:' .. string.match(record, '^%S+ (%S+)')}
    if name then
      words[2] = 'name:' .. name
    end
    return words
  end
end
