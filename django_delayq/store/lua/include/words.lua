-- The words by which the jobs of a queue can be paused: task:<task>, scope:<scope> and name:<concurrency name>. See limits.lua.
local words_of

if named then
  -- The words of a job; `name`: its concurrency name, if it has one. None for an unreadable record.
  function words_of(record, name)
    local band, _, _, _, task, scope = header(record)
    if not band then
      return {}
    end
    local words = {'task:' .. task}
    if scope ~= '' then
      words[2] = 'scope:' .. scope
    end
    if name then
      words[#words + 1] = 'name:' .. name
    end
    return words
  end
end
