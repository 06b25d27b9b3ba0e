-- A tombstone records that a job has ended, and how, before the mirror knows it. Its score is the ms of the end, plus a quarter of a ms
-- for a job that succeeded, half for one that was cancelled on request, and three quarters for one that was displaced: merged, replaced, or
-- expired; plus nothing for one that was removed from the failed jobs. Scripts use only the words. Needs begin.
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

-- How a job has ended, according to its tombstone's score; 'finished' if that is unknown; nil without a tombstone.
local function end_of(score)
  return score and (ENDS[tonumber(score) % 1] or 'finished') or nil
end
