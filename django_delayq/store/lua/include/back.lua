-- How a run ends whose job waits again. Needs begin, bulk, runs, priority_bands, asks, lines and finish.
local earliest -- the first date of these jobs

-- Puts a job back into the schedule; its past stays in `runs`.
local function back(id, attempt, crashes, band, due, past, asks)
  unlease(id)
  local date = due
  if lines then
    date = lines.put(id, band, due, gather)
  else
    gather('ZADD', BANDS[band], int(due), id)
  end
  if attempt == 0 and crashes == 0 and past == '' and (asks or asks_of(id)) == 0 then
    gather('HDEL', k_runs, id)
  else
    gather('HSET', k_runs, id, run_value(attempt, crashes, band, '', past))
  end
  earliest = date and math.min(earliest or date, date) or earliest
end
