-- claim: scheduled and due, or lease expired -> running; past its expiry -> cancelled, or failed if it has run; poison -> failed
-- keys: jobs high normal low runs leases cancels progress keys claims failed finished events wake meta stats spread asks names holders blocked waiters
-- include: begin bulk runs priority_bands tombstone asks concurrency_limit finish wake timer_election alive crash epoch spread untold
-- ARGV: now by(worker) why, nonce, want (at most 200), lease ms, max crashes, epoch that the worker knows ('' accepts any),
--   most jobs that the mirror may be behind (0: no limit), wary ('1': a mirror serves this queue, so a store that none has confirmed was
--   wiped, or is about to be confirmed), ms for which calls of this worker have failed until now (0: none has), lease ms of the queue
--   (left out: a worker asks; else a consumer of the project's own does, whose silence proves nothing), ms for which a job must have been due
-- Returns: generation server now wait more paused past, then per job: id attempt crashes due record.
--   wait: ms until this worker should ask again, to the µs, since rounded it would come late (0: at once); more: 1 when due jobs
--   remain, or may; paused: 1 when the queue is; past: "id=past …" of the jobs that have one, see runs.lua, with a<n> behind it of those
--   that have asked, see asks.lua, and t<turn> of those that have a name, see concurrency_limit.lua; "*=past" of all, where they have the same.
-- Leases that ran out first (attempt unchanged, crashes + 1), then due jobs, band by band, oldest due first (attempt + 1). A lease
-- without a fence came back from a row: where its run is, nobody knows; no crash is counted, and it begins again (attempt + 1).
-- To a consumer of the project's own a lost lease is handed as it is, with its old fence in the job's past ("x<nonce>"), for a RESPITE:
-- it was an attempt, no crash, and the caller, who knows the ladder, settles it so. Half a ms in the end of the lease says that it is
-- lost: whoever held it may still settle it until somebody has, but extends it no more.
-- A due job whose name is taken leaves its band for those that wait for it, once; a lost lease that is taken over keeps its name.
-- What has expired is not run: a job that has run or asked before has failed, one that never ran is cancelled.
-- Re-sent with the same worker and nonce it answers with what that claim still holds.
-- Nothing is claimed in another epoch than the worker knows (it first adopts what it holds), nor, where a mirror has been, on a server
-- that has just been started, was wiped or has taken over: until the database's side has confirmed that the data is not older than the
-- rows, or has brought back what ran and what was due.
-- Nothing is claimed, no lost lease either, while the mirror is behind by twice what schedules may be: an end is never refused, so what
-- may still be told is bounded by what is begun.
-- O(want * log N).
redis.call('HDEL', k_meta, '_') -- a first write that needs no memory, so that claiming goes on at maxmemory
local worker = by
local nonce, want, lease, max_crashes, expected, limit, wary, away, pulled, older = unpack(ARGV, 4, 13)
want, lease, max_crashes, limit, away = tonumber(want), tonumber(lease), tonumber(max_crashes), tonumber(limit), tonumber(away)
pulled, older = tonumber(pulled or ''), tonumber(older or '0')
local PATIENCE = 60000 -- ms; how long a confirmation is waited for when nobody works on it: a database that is away, too, comes back
local SOON = 50 -- ms
local RESPITE = 5000 -- ms; in which a consumer settles the lost lease of another

local paused, timer, timer_until, backup, backup_until, others_until, moved_to, moved_at, restoring, run, asked = values_of(k_meta,
  'paused', 'timer', 'timer_until', 'backup', 'backup_until', 'others_until', 'moved_to', 'moved_at', 'restoring', 'run', 'asked')
present()
local here = server()
if not generation or not string.find(generation, '^%w+$') or #generation > 64 then -- none, or none of ours
  local seconds, us = unpack(redis.call('TIME')) -- the same claim may find the next wiped store, too
  generation = nonce .. seconds .. us
  redis.call('HSET', k_meta, 'generation', generation)
end
local moved = here ~= '' and run ~= here
local takeover = alive(pulled or lease, away, moved and run, pulled)
if moved then
  redis.call('HSET', k_meta, 'run', here)
end

-- The beginning of the reply, in front of the jobs.
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

-- Where all have the same, mostly no more than a turn, it is said once.
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

-- A re-send: the same jobs, as far as that claim still holds them; also when the queue has been paused since, else nobody
-- would run them until their leases have run out, as crashes.
local last = redis.call('HGET', k_claims, worker)
if last and string.match(last, '^(%S+)') == nonce then
  for id, due in string.gmatch(last, ' (%w+)=(%d+)') do -- ids that we wrote there; a record may have been changed since
    local attempt, crashes, _, held, past = run_of(redis.call('HGET', k_runs, id))
    local record = redis.call('HGET', k_jobs, id)
    if held == nonce and record then
      local turn
      if named then
        local _
        _, _, turn = name_of(id)
      end
      answer(id, attempt, crashes, due, record, past, asks_of(id), tonumber(turn or ''))
    end
  end
  reply[PASTS] = told_pasts()
  return reply
end

-- The reply while nothing may be claimed. Nobody sleeps for a date then, and nobody is called for one: all ask again, or somebody says
-- that they may go on.
local function nothing(wait, more)
  if armed then
    redis.call('HDEL', k_meta, 'armed')
  end
  return head(int(wait), more)
end

if paused then
  return nothing(SAFETY, '0')
end
if is_behind(surplus, 2 * limit) then
  return nothing(SAFETY, '0')
end
local believed = confirmed or (wary ~= '1' and here) -- a server that no mirror has confirmed has, mostly, none who would
if (rolled and rolled ~= 'rest') or (here ~= '' and believed ~= here) then
  local since = tonumber(moved_at)
  if moved_to ~= here or not since then
    since = now
    redis.call('HSET', k_meta, 'moved_to', here, 'moved_at', int(now))
  end
  local worked = tonumber(string.match(restoring or '', '^%d+')) or since
  local waited = math.min(math.abs(now - since), math.abs(now - worked)) -- the clock may have been put back
  if waited <= PATIENCE then
    return nothing(math.max(SOON, math.min(waited / 10, SAFETY)), '1')
  end
end

local claimed, mine, taken = 0, {}, {}

local function take(id, attempt, crashes, band, due, record, past, asks, turn)
  claimed = claimed + 1
  due = math.max(0, due) -- a date before 1970 was not written by us, and worker and mirror could not read it
  taken[id] = true
  local date = int(due)
  mine[claimed] = id .. '=' .. date
  gather('ZADD', k_leases, int(now + lease), id)
  gather('HSET', k_runs, id, run_value(attempt, crashes, band, nonce, past))
  event('claimed', id .. ' ' .. int(attempt) .. ' ' .. int(crashes) .. ' ' .. nonce)
  answer(id, attempt, crashes, date, record, past, asks, turn)
end

-- Why something was set aside: a code, by which the mirror goes, and behind it what people read, by which releases without codes go.
local function tell_aside(id, code)
  local words = {
    no_job = 'a date without a job', lease_only = 'a lease without a job', second_date = 'a second date of a running job',
    bad_record = 'unreadable record', bad_run = 'unreadable record or run',
  }
  event('aside', (is_id(id) and id or '?') .. ' ' .. code .. '\n' .. words[code])
end

-- A stray id, or a record that nobody can read: out of the way, with an event; the record stays with the failed ones.
local function set_aside(id, code, record)
  unlease(id)
  unrun(id)
  if record and is_id(id) then
    local _, _, _, key = header(record)
    release(id, key or '') -- else the next job of that key would be merged into this one, which does not run
    gather('ZADD', k_failed, int(now), id)
  elseif record then
    gather('HDEL', k_jobs, id) -- nobody could name it
  end
  tell_aside(id, code)
end

-- Whether somebody has asked to cancel a job while nobody knew whether it runs: see cancel.lua. That is rare.
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

-- Lost leases: nobody extended them, and no outage explains that (alive.lua). What becomes of the jobs says crash.lua.
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
      if not unowned then
        event('crashed', id .. ' ' .. int(attempt) .. ' ' .. int(crashes) .. ' ' .. held .. ' ' .. int(now))
      end
      if expires <= now then
        unlease(id)
        expire(id, attempt, crashes, key, 0) -- it has run
      else
        gather('HDEL', k_progress, id)
        take(id, attempt, crashes, band, tonumber(lease_end), record, past, asks_of(id), named and hold_name(id))
      end
    end
  end
end

if named and handled > 0 then
  flush() -- who holds a name is looked up
end
for _, letter in ipairs(BAND_ORDER) do
  local room = want - handled
  if room == 0 then
    break
  end
  local band = BANDS[letter]
  local due = redis.call('ZRANGEBYSCORE', band, '-inf', int(now - older), 'WITHSCORES', 'LIMIT', 0, room)
  if #due ~= 0 then
    local ids = {}
    for i = 1, #due / 2 do
      ids[i] = due[i * 2 - 1]
    end
    if named then
      read_names(ids)
    end
    local records = redis.call('HMGET', k_jobs, unpack(ids))
    local runs = redis.call('HMGET', k_runs, unpack(ids))
    gather('ZREMRANGEBYRANK', band, 0, #ids - 1) -- they are its first, and whatever becomes of them, they leave it
    for i = 1, #ids do
      local id, record = ids[i], records[i]
      handled = handled + 1
      local short, _, expires, key = header(record or '')
      local attempt, crashes, _, held, past = run_of(runs[i])
      local name, most
      if named then
        name, most = name_of(id)
      end
      local left = name -- without holding it, or waiting for it
      if taken[id] or (held and held ~= '' and redis.call('ZSCORE', k_leases, id)) then
        tell_aside(id, 'second_date')
      elseif not short or not is_id(id) then
        set_aside(id, record and 'bad_record' or 'no_job', record)
      elseif asked and redis.call('HEXISTS', k_cancels, id) == 1 then
        gather('HDEL', k_cancels, id)
        finish(id, key, 'cancelled')
        event('cancelled', id .. ' ' .. int(attempt or 0) .. ' ' .. int(crashes or 0) .. ' -')
        tally('cancelled')
      elseif expires <= now then
        expire(id, attempt or 0, crashes or 0, key, attempt and asks_of(id) or 0)
      else
        local date = tonumber(due[i * 2])
        left = nil
        if name and not take_room(name, most) then
          local since = math.max(0, date)
          gather('ZADD', k_blocked, int(since), id)
          gather('ZADD', k_waiters, '0', waiter(id, letter, since, name))
        else
          spread(bucket(now - date))
          take(id, (attempt or 0) + 1, crashes or 0, key ~= '' and string.upper(letter) or letter, date, record, past or '',
            attempt and asks_of(id) or 0, name and hold_name(id, math.max(0, date), name, most))
        end
      end
      if left then
        may_be_next(name)
      end
    end
  end
end

flush()
if named then
  call_waiters()
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
local sleep = elect(worker, handled >= want, next_date, more, timer, timer_until, backup, backup_until, others_until)

for kind, n in pairs(count) do
  redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':' .. kind, n)
end
write_spread(LATE, count)
publish()
reply[WAIT], reply[MORE], reply[PASTS] = string.format('%.3f', math.max(0, sleep - since)), more and '1' or '0', told_pasts()
return reply
