-- A tombstone says that a job has ended, and how, before the mirror knows it: its score is the ms of the end, and a quarter of a ms more
-- for a job that succeeded, half for one that was cancelled when asked to, three quarters for one that was displaced: merged, replaced, or
-- expired; nothing more for one that was dropped from the failed ones. Scripts know the words alone. Needs begin.
local FRACTIONS = {succeeded = '.25', cancelled = '.5', displaced = '.75', finished = ''}
local ENDS = {[0.25] = 'succeeded', [0.5] = 'cancelled', [0.75] = 'displaced'}

local scores = {}
local function tombstone(how)
  local score = scores[how]
  if not score then
    score = int(now) .. FRACTIONS[how]
    scores[how] = score
  end
  return score
end

-- How a job has ended, by its tombstone's score; 'finished' where that does not say; nil without a tombstone.
local function end_of(score)
  return score and (ENDS[tonumber(score) % 1] or 'finished') or nil
end
