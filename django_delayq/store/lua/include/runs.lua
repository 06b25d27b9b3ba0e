-- A value of `runs`: attempt:crashes:band:nonce[:past]. The nonce is empty while the job waits, and while it has a lease but was restored
-- from its row and no worker has reported its run yet: then the attempt is the previous one. The band letter is a capital if the job holds a
-- key, so that settle reads the record only for jobs whose key it must free.
-- past: e<n>, how many times in a row its process was killed because of another job; then u<ms>, when it was first parked because the
-- worker did not know its task or its arguments. Crashes and returned runs do not change it; a run that ends by itself removes it.

-- Returns attempt, crashes, band letter, nonce, past ('' for none); nil if the value is missing or invalid.
-- Jobs of one claim usually have the same value, which is parsed once.
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
