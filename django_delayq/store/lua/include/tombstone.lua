-- A tombstone records that a job has ended, and how, before the mirror knows it. Its score is the ms of the end, plus a quarter of a ms
-- for a job that succeeded, half for one that was cancelled on request, and three quarters for one that was displaced: merged, replaced, or
-- expired; plus nothing for one that was removed from the failed jobs. Scripts use only the words. Needs begin.
local scores = {}
local function tombstone(how)
  local score = scores[how]
  if not score then
    score = int(now) .. (how == 'succeeded' and '.25' or how == 'cancelled' and '.5' or how == 'displaced' and '.75' or '')
    scores[how] = score
  end
  return score
end

-- How a job has ended, according to its tombstone's score; 'finished' if that is unknown; nil without a tombstone.
local function end_of(score)
  local part = score and tonumber(score) % 1
  return part and (part == 0.25 and 'succeeded' or part == 0.5 and 'cancelled' or part == 0.75 and 'displaced' or 'finished') or nil
end
