-- claim: scheduled and due, or lease expired -> running; past its expiry -> cancelled, or failed if it has run; poison -> failed
-- keys: jobs high normal low runs leases cancels progress keys claims failed finished events wake meta stats spread asks names holders blocked waiters pauses limits rates opens
-- include: begin bulk runs priority_bands tombstone asks words lines limits finish back wake timer_election alive crash epoch spread untold
-- ARGV: now by(worker) why, nonce, want (at most 200), lease ms, max crashes, the worker's epoch ('' accepts any),
--   the most jobs by which the mirror may lag (0: no limit), wary ('1': a mirror serves this queue, so an unconfirmed store was wiped, or
--   is about to be confirmed), the ms for which this worker's calls have failed until now (0: none failed), the number of idle threads
--   ('': all jobs have one), the queue's lease in ms (omitted for a worker; given for a pull consumer, whose silence proves nothing), the
--   ms for which a job must have been due
-- Returns: generation server now wait more paused past, then per job: id attempt crashes due record.
--   wait: ms until this worker should ask again, to the µs, because a rounded wait would end late (0: at once); more: 1 if due jobs
--   remain, or may; 2 if one of them has a token of its rate and waits for an idle thread; paused: 1 if the queue is; past: "id=past …" of the jobs that have one, see runs.lua, followed by a<n>, the poll
--   count, see asks.lua, by t<turn> if the job has a name, see lines.lua, and by p if a pause made it late; "*=past" if all jobs have the
--   same.
-- Expired leases come first (attempt unchanged, crashes + 1), then due jobs, band by band, oldest due first (attempt + 1). A lease
-- without a fence was restored from a row: the place of its run is unknown. No crash is counted, and the job starts again (attempt + 1).
-- A pull consumer gets a lost lease unchanged, with its old fence in the job's past ("x<nonce>"), for a RESPITE: this was an attempt and
-- no crash, and the caller settles it, because it knows the ladder. Half a ms in the end of the lease marks it as lost: its last holder
-- can still settle it until another consumer has, but cannot extend it.
-- A due job whose name is taken leaves its band once and waits for the name. A lost lease that is taken over keeps its name.
-- A due job that is paused leaves its band once, too, see limits.lua. It uses up none of `want`. A lost lease of a paused job ends, and the
-- job waits like any due job.
-- A due job with a rate leaves its band without a token, or without an idle thread, and uses up none of `want`, either. A lost lease of such
-- a job ends, so that its next run takes a token, too.
-- An expired job does not run: it fails if it has run or polled before, otherwise it is cancelled.
-- Sent again with the same worker and nonce, it returns the jobs that this claim still holds.
-- Nothing is claimed in another epoch than the worker's: the worker adopts its runs first. If a mirror serves the queue, nothing is
-- claimed on a server that was started, wiped or promoted either, until the database has confirmed that the data is not older than the
-- rows, or the running and due jobs are restored.
-- Nothing is claimed, not even a lost lease, while the mirror lags by twice the limit for schedules: ends are never refused, so the number
-- of started jobs limits the events to come.
-- O(want * log N).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory, so that claims succeed at maxmemory
local worker = by
local nonce, want, lease, max_crashes, expected, limit, wary, away, free, pulled, older = unpack(ARGV, 4, 14)
want, lease, max_crashes, limit, away = tonumber(want), tonumber(lease), tonumber(max_crashes), tonumber(limit), tonumber(away)
free, pulled, older = tonumber(free or '') or want, tonumber(pulled or ''), tonumber(older or '0')
local PATIENCE = 60000 -- ms; the wait for a confirmation that no process works on: the database may be down, too, and return
local SOON = 50 -- ms
local MOST = 200 -- jobs of a call
local RESPITE = 5000 -- ms; the time for a consumer to settle another's lost lease

local values = redis.call('HMGET', k_meta, 'paused', 'timer', 'timer_until', 'backup', 'backup_until', 'others_until', 'moved_to',
  'moved_at', 'restoring', 'run', 'asked', 'alive', 'guard_from', 'guard_until', 'guard_since', 'guard_next')
local paused, asked = values[1], values[11]
local paused_until = paused and tonumber(redis.call('HGET', k_meta, 'paused_until') or '')
if paused_until and paused_until <= now then
  paused = nil
end
present()
local here = server()
if not generation or not string.find(generation, '^%w+$') or #generation > 64 then -- none, or an invalid one
  local seconds, us = unpack(redis.call('TIME')) -- so that the same claim on the next wiped store gets another one
  generation = nonce .. seconds .. us
  redis.call('HSET', k_meta, 'generation', generation)
end
local takeover
do
  local run = values[10]
  local moved = here ~= '' and run ~= here
  takeover = alive(pulled or lease, away, moved and run, pulled, unpack(values, 12, 16))
  if moved then
    redis.call('HSET', k_meta, 'run', here)
  end
end

-- The first values of the reply, before the jobs.
local WAIT, MORE, PASTS, JOBS = 4, 5, 7, 7
local function head(wait, more)
  return {generation, here, int(now), wait, more, paused and '1' or '0', ''}
end

if expected ~= '' and expected ~= generation .. ':' .. here then
  return head('0', '0')
end

local reply, reply_n = head('0', '0'), JOBS
local pasts, pasts_n, alike = {}, 0, true
local function answer(id, attempt, crashes, due, record, past, asks, turn)
  if asks ~= 0 then
    past = past .. 'a' .. int(asks)
  end
  if turn then
    past = past .. 't' .. int(turn)
  end
  if limits and limits.returned[id] then
    past = past .. 'p'
  end
  if past ~= '' then
    alike = alike and (pasts_n == 0 or past == pasts[pasts_n])
    pasts[pasts_n + 1], pasts[pasts_n + 2] = id, past
    pasts_n = pasts_n + 2
  end
  local n = reply_n
  reply[n + 1], reply[n + 2], reply[n + 3] = id, int(attempt), int(crashes)
  reply[n + 4], reply[n + 5] = due, record
  reply_n = n + 5
end

-- If all jobs have the same past, which is usually only a turn, it is returned once.
local function told_pasts()
  if pasts_n == 0 then
    return ''
  elseif alike and (reply_n - JOBS) / 5 == pasts_n / 2 then
    return '*=' .. pasts[2]
  end
  local told = {}
  for i = 1, pasts_n, 2 do
    told[#told + 1] = pasts[i] .. '=' .. pasts[i + 1]
  end
  return table.concat(told, ' ')
end

-- Sent again: returns the jobs that this claim still holds, even if the queue has been paused since. Otherwise no worker would run them
-- until their leases expire, as crashes.
local last = redis.call('HGET', k_claims, worker)
if last and string.match(last, '^(%S+)') == nonce then
  for id, due in string.gmatch(last, ' (%w+)=(%d+)') do -- these ids are written below; the record may have changed since
    local attempt, crashes, _, held, past = run_of(redis.call('HGET', k_runs, id))
    local record = redis.call('HGET', k_jobs, id)
    if held == nonce and record then
      local turn
      if lines then
        _, _, turn = lines.of(id)
      end
      answer(id, attempt, crashes, due, record, past, asks_of(id), tonumber(turn or ''))
    end
  end
  reply[PASTS] = told_pasts()
  return reply
end

-- The reply while nothing may be claimed. Then no mover sleeps until a date, and none is woken for one: all ask again, or get a token
-- when claims continue.
local function nothing(wait, more)
  if armed then
    redis.call('HDEL', k_meta, 'armed')
  end
  return head(int(wait), more)
end

if paused then
  return nothing(math.min(SAFETY, (paused_until or math.huge) - now), '0')
end
if is_behind(surplus, 2 * limit) then
  return nothing(SAFETY, '0')
end
if (rolled and rolled ~= 'rest') or (here ~= '' and (confirmed or (wary ~= '1' and here)) ~= here) then
  -- A server that was never confirmed usually has no mirror to confirm it.
  local moved_to, moved_at, restoring = unpack(values, 7, 9)
  local since = tonumber(moved_at)
  if moved_to ~= here or not since then
    since = now
    redis.call('HSET', k_meta, 'moved_to', here, 'moved_at', int(now))
  end
  local worked = tonumber(string.match(restoring or '', '^%d+')) or since
  local waited = math.min(math.abs(now - since), math.abs(now - worked)) -- the clock may have been set back
  if waited <= PATIENCE then
    return nothing(math.max(SOON, math.min(waited / 10, SAFETY)), '1')
  end
end

local claimed, mine, taken = 0, {}, {}

local function take(id, attempt, crashes, band, due, record, past, asks, turn)
  claimed = claimed + 1
  due = math.max(0, due) -- an invalid date before 1970, which worker and mirror could not read
  taken[id] = true
  local date = int(due)
  mine[claimed] = id .. '=' .. date
  gather('ZADD', k_leases, int(now + lease), id)
  gather('HSET', k_runs, id, run_value(attempt, crashes, band, nonce, past))
  event('claimed', id .. ' ' .. int(attempt) .. ' ' .. int(crashes) .. ' ' .. nonce)
  answer(id, attempt, crashes, date, record, past, asks, turn)
end

-- The reason of a rejected entry: a code for the mirror, then a text for people.
local function tell_aside(id, code)
  local words = {
    no_job = 'a date without a job', lease_only = 'a lease without a job', second_date = 'a second date of a running job',
    bad_record = 'unreadable record', bad_run = 'unreadable record or run',
  }
  event('aside', (is_id(id) and id or '?') .. ' ' .. code .. '\n' .. words[code])
end

-- A stray id, or an unreadable record: it is removed with an event, and the record is kept with the failed jobs.
local function set_aside(id, code, record)
  unlease(id)
  unrun(id)
  if record and is_id(id) then
    local _, _, _, key = header(record)
    release(id, key or '') -- otherwise the next job of that key would be merged into this one, which does not run
    gather('ZADD', k_failed, int(now), id)
  elseif record then
    gather('HDEL', k_jobs, id) -- no call could name it
  end
  tell_aside(id, code)
end

-- Whether a cancel was requested while it was unknown whether the job runs: see cancel.lua. This is rare.
if asked and redis.call('EXISTS', k_cancels) == 0 then
  redis.call('HDEL', k_meta, 'asked')
  asked = false
end

local handled, count = 0, {}

local function tally(kind)
  count[kind] = (count[kind] or 0) + 1
end

local function expire(id, attempt, crashes, key, asks)
  if attempt + crashes + asks == 0 then
    finish(id, key, 'displaced')
    event('expired', id)
    tally('cancelled')
    return
  end
  release(id, key)
  unrun(id)
  gather('ZADD', k_failed, int(now), id)
  event('failed', id .. ' ' .. int(attempt) .. ' ' .. int(crashes)
    .. ' -\n{"c":"Expired","m":"it expired before it could run again","p":"expired"}')
  tally('failed')
end

-- Lost leases: they were not extended, and no outage explains it (alive.lua). crash.lua decides about the jobs.
local ended = redis.call('ZRANGEBYSCORE', k_leases, '-inf', '(' .. int(takeover), 'WITHSCORES', 'LIMIT', 0, want)
for i = 1, #ended, 2 do
  local id, lease_end = ended[i], ended[i + 1]
  handled = handled + 1
  local attempt, crashes, band, held, past = run_of(redis.call('HGET', k_runs, id))
  local record = redis.call('HGET', k_jobs, id)
  local short, _, expires, key = header(record or '')
  if not attempt or not short or not is_id(id) then
    set_aside(id, record and 'bad_run' or 'lease_only', record)
  else
    local cancelled = redis.call('HEXISTS', k_cancels, id) == 1
    local unowned = held == ''
    local counts = not unowned and not pulled -- as a crash
    attempt, crashes = attempt + (unowned and 1 or 0), crashes + (counts and 1 or 0)
    local fate = crash(id, attempt, crashes, unowned and '-' or held, key, pulled and math.huge or max_crashes, cancelled)
    if counts then
      tally('crashed')
    end
    if fate == 'failed' then
      tally('failed')
    elseif fate == 'again' and pulled and not unowned then
      gather('ZADD', k_leases, int(now + RESPITE) .. '.5', id)
      answer(id, attempt, crashes, int(math.floor(tonumber(lease_end))), record, past .. 'x' .. held, 0)
    elseif fate == 'again' then
      local date -- at which it waits, if it is paused or has a rate
      if limits then
        limits.read({id}, {record})
        date = (limits.paused(id, record) or limits.rate_of(id)) and (lines.first_due(id) or math.floor(tonumber(lease_end)))
      end
      if not unowned then
        event('crashed', id .. ' ' .. int(attempt) .. ' ' .. int(crashes) .. ' ' .. held .. ' ' .. int(date or now))
      end
      if expires <= now then
        unlease(id)
        expire(id, attempt, crashes, key, 0) -- it has run
      elseif date then
        if unowned then
          event('snoozed', id .. ' ' .. int(attempt) .. ' ' .. int(crashes) .. ' - ' .. int(date) .. '\n{}')
        end
        back(id, attempt - 1, crashes, band, date, past)
      else
        gather('HDEL', k_progress, id)
        take(id, attempt, crashes, band, tonumber(lease_end), record, past, asks_of(id), lines and lines.hold(id))
      end
    end
  end
end

if lines then
  lines.fair.older = older
end
if lines and handled > 0 then
  flush() -- the holders of names are read next
end
local for_thread = limits and limits.open(want - handled, free)
-- Jobs that a pause or a rate holds do not use up `want`. `passes`: how often free room was filled. Another call takes less time than more.
local rank, held_back, passes = 1, 0, 0
while rank <= #BAND_ORDER do
  local letter = BAND_ORDER[rank]
  local band, room, before = BANDS[letter], math.min(want, MOST - held_back) - handled, held_back
  if room <= 0 then
    break
  end
  rank = rank + 1
  local due = redis.call('ZRANGEBYSCORE', band, '-inf', int(now - older), 'WITHSCORES', 'LIMIT', 0, room)
  if #due ~= 0 then
    local ids = {}
    for i = 1, #due / 2 do
      ids[i] = due[i * 2 - 1]
    end
    if lines then
      lines.read(ids)
    end
    local records = redis.call('HMGET', k_jobs, unpack(ids))
    local runs = redis.call('HMGET', k_runs, unpack(ids))
    if limits then
      limits.read(ids, records)
    end
    gather('ZREMRANGEBYRANK', band, 0, #ids - 1) -- they are the first of the band, and leave it in any case
    for i = 1, #ids do
      local id, record = ids[i], records[i]
      handled = handled + 1
      local short, _, expires, key = header(record or '')
      local attempt, crashes, _, held, past = run_of(runs[i])
      local date = tonumber(due[i * 2])
      local name, most, rate, fair
      if lines then
        name, most = lines.of(id)
        fair = lines.fair_line(id, letter)
        date = fair and lines.first_due(id) or date
      end
      if limits then
        rate = limits.rate_of(id)
        limits.moved[id] = nil
      end
      local left = name -- whether it leaves without holding its name, or waiting for it
      if taken[id] or (held and held ~= '' and redis.call('ZSCORE', k_leases, id)) then
        tell_aside(id, 'second_date')
      elseif not short or not is_id(id) then
        set_aside(id, record and 'bad_record' or 'no_job', record)
      elseif asked and redis.call('HEXISTS', k_cancels, id) == 1 then
        gather('HDEL', k_cancels, id)
        finish(id, key, 'cancelled')
        event('cancelled', id .. ' ' .. int(attempt or 0) .. ' ' .. int(crashes or 0) .. ' -')
        tally('cancelled')
      elseif limits and limits.hold(id, letter, date, record) then
        handled, held_back = handled - 1, held_back + 1
      elseif expires <= now then
        expire(id, attempt or 0, crashes or 0, key, attempt and asks_of(id) or 0)
      else
        left = nil
        if name and not lines.has_room(name, most) then
          lines.wait(id, letter, name, date)
        elseif rate and (claimed >= free or not limits.has_token(rate)) then -- it is the next of its name, so no other is called
          for_thread = for_thread or limits.has_token(rate)
          limits.wait(id, letter, tonumber(due[i * 2]), rate)
          fair = nil -- it keeps its turn
          handled, held_back = handled - 1, held_back + 1
        else
          if rate then
            limits.take_token(rate)
          end
          take(id, (attempt or 0) + 1, crashes or 0, key ~= '' and string.upper(letter) or letter, date, record, past or '',
            attempt and asks_of(id) or 0, name and lines.hold(id, math.max(0, date), name, most))
        end
      end
      if left then
        lines.left(id)
      end
      if fair then
        lines.end_turn(id, fair, gather)
      end
    end
  end
  room = math.min(want, MOST - held_back) - handled
  local refills = lines and passes < 4 and room > 0 and lines.any_turn()
  if held_back > before or refills then -- the next ones of this band come before those of the others
    flush()
    lines.call(refills and room)
    rank, passes = 1, passes + 1
  end
end

flush()
if limits then
  limits.close()
  flush()
end
if lines then
  lines.call()
end
if claimed > 0 then
  redis.call('HSET', k_claims, worker, nonce .. ' ' .. int(now) .. ' ' .. table.concat(mine, ' '))
end

local next_date = first_date()
if next_date and older > 0 then
  next_date = next_date + older
end
local more = next_date and next_date <= now
local _, lease_end = unpack(redis.call('ZRANGE', k_leases, 0, 0, 'WITHSCORES'))
lease_end = tonumber(lease_end)
if lease_end and takeover == now then
  next_date = math.min(next_date or math.huge, lease_end + 1)
end
local sleep = elect(worker, handled >= want or for_thread, next_date, more, unpack(values, 2, 6))

for kind, n in pairs(count) do
  redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':' .. kind, n)
end
write_spread(count)
publish()
reply[WAIT], reply[MORE], reply[PASTS] = string.format('%.3f', math.max(0, sleep - since)), for_thread and '2' or more and '1' or '0', told_pasts()
return reply
