-- A value of `runs`: attempt:crashes:band:nonce[:past]. The nonce is empty while the job waits; and while it has a lease, but came back
-- from its row, and no worker has told yet that it runs it: the attempt is then the one before. The band letter is a capital when the job
-- holds a business key, so that settle reads the record only of jobs whose key it must free.
-- past: e<n>, how many times in a row its process was killed for a neighbour's sake; then u<ms>, when it was first parked because the
-- worker did not know its task or its arguments. It lasts over crashes and runs that were given back, until a run ends by itself.

-- Returns attempt, crashes, band letter, nonce, past ('' for none); nil when there is no such value, or not one of ours.
-- Jobs of one claim mostly have the same, which is read once.
local runs_read = {}
local function run_of(value)
  if not value then
    return nil
  end
  local read = runs_read[value]
  if not read then
    local attempt, crashes, band, nonce = string.match(value, '^(%d+):(%d+):([hnlHNL]):(%w*)')
    local past = attempt and string.sub(value, #attempt + #crashes + #nonce + 5)
    if not attempt or #attempt > 9 or #crashes > 9 or #past > 32 or (past ~= '' and not string.find(past, '^:e?%d*u?%d*$')) then
      return nil
    end
    read = {attempt = tonumber(attempt), crashes = tonumber(crashes), band = band, nonce = nonce, past = string.sub(past, 2)}
    runs_read[value] = read
  end
  return read.attempt, read.crashes, read.band, read.nonce, read.past
end

local function run_value(attempt, crashes, band, nonce, past)
  local value = int(attempt) .. ':' .. int(crashes) .. ':' .. band .. ':' .. nonce
  return past == '' and value or value .. ':' .. past
end
