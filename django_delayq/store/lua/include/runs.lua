-- A value of `runs`: attempt:crashes:lane:nonce, the nonce empty while the job waits. The lane letter is a capital when the
-- job holds a business key, so that settle reads the record only of jobs whose key it must free.

-- Returns attempt, crashes, lane letter, nonce; nil when there is no such value, or not one of ours.
-- Jobs of one claim mostly have the same, which is read once.
local runs_read = {}
local function run_of(value)
  if not value then
    return nil
  end
  local read = runs_read[value]
  if not read then
    local attempt, crashes, lane, nonce = string.match(value, '^(%d+):(%d+):([hnlHNL]):(%w*)$')
    if not attempt or #attempt > 9 or #crashes > 9 then
      return nil
    end
    read = {tonumber(attempt), tonumber(crashes), lane, nonce}
    runs_read[value] = read
  end
  return read[1], read[2], read[3], read[4]
end
