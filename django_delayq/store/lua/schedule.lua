-- schedule: nothing -> scheduled; the holder of its key -> rescheduled or cancelled, by the policy
-- keys: jobs high normal low runs leases keys failed finished events wake meta stats asks names holders blocked waiters firsts
-- include: schedule_fast_path begin bulk runs priority_bands nowhere fair_words words lines concurrency_name tombstone wake unique_key untold epoch asks first_date
-- ARGV: now by why, the most jobs by which the mirror may lag (0: no limit), the sender's epoch ('' any), mode,
--   then per job (at most 200): id record policy date, and in mode 'named' its name: "most:name", '' for none, see lines.lua
--   epoch: generation:server as in meta; in another epoch the sender's information about its jobs may be outdated
--   mode: 'ask' writes nothing, and returns the outcome that each job would have; 'told': the sender has asked the rows for the holders of
--     these keys, because Redis lacks some of them, or may; 'ask told': both; '': all others; with 'named ' in front, each job has one
--     argument more
--   policy: keep, error, replace, earliest, latest, after; with '@' and the id of a holder, or none, the job is late and only affects that
--     holder; latest+<ms>[/<date>]: the date is at most that long after the first date, see first_date.lua; 'replaced@' and an id: that job waits as a row in its place, and this one must never be scheduled; after a space,
--     the only tasks that the sender may access, see `forbidden`
--   date: ms; with a leading plus a delay from Redis's now
-- Returns the epoch; in another epoch than the sender's nothing else, and nothing is written. If all jobs are created as requested, or
--   with mode 'ask' all keys are free, only Redis's now may follow; otherwise, per job: status holder due.
--   status: created, again (an unfinished job has this id: sent again), failed, succeeded, cancelled, displaced, finished (it has ended;
--     the last four according to its tombstone), kept, moved, replaced, taken (policy error), running (replace refused: the holder runs),
--     forbidden (the sender may not access the holder, which stays unchanged); and without a trace:
--     free (mode ask), contested (it is late, and another job than the given one holds the key), behind (policy after: the holder has
--     started), asked (ask the rows first: this server lacks jobs, or is not yet confirmed to be complete)
--   holder: the id that holds the key, '' for forbidden, and for asked if no job holds it here; due: the requested or actual date; 0 for an
--     existing job that has started or ended.
-- A holder that expired before it was claimed does not hold its key. Nor does one that would be moved past its expiry: the new job replaces
-- it.
-- Errors before any write: BADRECORD n; EVENTSFULL; RESTORING, during a sweep, for a job with a key whose sender has asked the rows: the
--   holder of the key may have been removed after that. This is the only script that Redis refuses at maxmemory: its first write
--   must be one that needs memory (HSET).
-- O(log N) per job.
local STRIDE, FIRST = 4, 7
local limit, known_epoch, mode = tonumber(ARGV[4]), ARGV[5], ARGV[6]
if string.sub(mode, 1, 6) == 'named ' then
  STRIDE, mode = 5, string.sub(mode, 7)
end
local items = (#ARGV - FIRST + 1) / STRIDE
local asks, told = string.sub(mode, 1, 3) == 'ask', string.sub(mode, -4) == 'told'
local epoch = (generation or '') .. ':' .. (confirmed or '')
if items == 0 or (known_epoch ~= '' and known_epoch ~= epoch) then
  return {epoch}
end
local keyed = false
local bands, durables, keys = {}, {}, {}
for i = 1, items do
  local at = FIRST + (i - 1) * STRIDE
  local band, durable, _, key = header(ARGV[at + 1])
  if not band then
    return redis.error_reply('BADRECORD ' .. i)
  end
  bands[i], durables[i], keys[i] = band, durable, key
  keyed = keyed or key ~= ''
end
if is_behind(surplus, limit) then
  return redis.error_reply('EVENTSFULL the mirror is ' .. int(limit) .. ' jobs behind')
end
if keyed and told and rolled == 'sweep' and not asks then
  return redis.error_reply('RESTORING the holder of a key may be away until its row brings it back; ask again in a moment')
end
present()
if not generation and not asks then
  local seconds, us = unpack(redis.call('TIME')) -- so that the same job on the next wiped store gets another one
  generation = ARGV[FIRST] .. seconds .. us
  redis.call('HSET', k_meta, 'generation', generation)
  epoch = generation .. ':' .. (confirmed or '')
end

local reply, created, earliest = {epoch}, 0, nil

local function note(due)
  earliest = due and math.min(earliest or due, due) or earliest
end

local function tell_displaced(id, by)
  event('cancelled', id .. ' 0 0 -\n{"m":"replaced by ' .. by .. '","r":"' .. by .. '"}')
end

-- Only for calls with a key, because creating functions takes time.
local must_ask, contest, leave
if keyed then
  -- Whether only the rows know the holder of a key: this server lacks jobs, or another run of it was confirmed than the current one, so its
  -- data may be old. Jobs scheduled after a wipe are known here, so then only a free key must be asked about.
  local here
  must_ask = function(other)
    if told or (other and not confirmed) then
      return false
    end
    here = here or server()
    return not confirmed or rolled or confirmed ~= here
  end

  -- A waiting holder leaves: `id` replaces it, or (nil) it has expired. The new job gets the key. The order matters if Redis refuses a
  -- command: the first call of each command comes before the holder leaves its band, so a refusal leaves the holder scheduled.
  leave = function(holder, band, id)
    local attempt, crashes = run_of(redis.call('HGET', k_runs, holder))
    local asks = attempt and asks_of(holder) or 0
    local fails = not id and (attempt or 0) + (crashes or 0) + asks > 0
    redis.call('HDEL', k_runs, holder)
    if fails then
      redis.call('ZADD', k_failed, int(now), holder)
    else
      redis.call('ZADD', k_finished, tombstone('displaced'), holder)
    end
    if not (lines and lines.withdraw(holder, band)) then
      redis.call('ZREM', BANDS[band], holder)
    end
    if asks > 0 then
      redis.call('HDEL', k_asks, holder)
    end
    if fails then
      event('failed', holder .. ' ' .. int(attempt) .. ' ' .. int(crashes)
        .. ' -\n{"c":"Expired","m":"it expired before it could run again","p":"expired"}')
      return
    end
    redis.call('HDEL', k_jobs, holder)
    if lines then
      lines.forget(holder)
    elseif STRIDE == 5 then
      redis.call('HDEL', k_names, holder) -- this call may have scheduled it
    end
    if id then
      tell_displaced(holder, id)
    else
      event('expired', holder)
    end
  end

  -- Decides about a key that another unfinished job holds. Returns the status. With 'free' the caller takes the key after `leave`, and the
  -- date and the arguments for `leave` follow.
  contest = function(id, holder, key, policy, due)
    local record = redis.call('HGET', k_jobs, holder)
    local band, _, expires = header(record)
    local date = tonumber(band and (lines and lines.date_of(holder, band) or redis.call('ZSCORE', BANDS[band], holder)) or '') -- if it waits
    if date and expires <= now then -- checked before may_run, because nothing must wait for a job that never runs
      return 'free', due, band
    elseif date and may_run(date, true) then
      date = nil
    end
    if string.find(policy, ' ', 1, true) then
      local bare, tasks = string.match(policy, '^(%S+)(.*)$')
      if not string.find(tasks .. ' ', ' ' .. string.match(record, '^%S+ (%S+)') .. ' ', 1, true) then
        return 'forbidden'
      end
      policy = bare
    end
    local own, about = string.match(policy, '^([^@]+)@(%w*)$')
    if own and about ~= holder then
      return 'contested'
    end
    policy = own or policy
    local most, first = at_most(policy)
    if most then
      first = first_of(holder, first)
      policy, due = 'latest', math.min(due, first + most)
    end
    if policy == 'keep' then
      return 'kept'
    elseif policy == 'error' then
      return 'taken'
    end
    if policy == 'after' and (not date or redis.call('HEXISTS', k_runs, holder) == 1) then
      return 'behind'
    elseif not date then
      return policy == 'replace' and 'running' or 'kept'
    end
    local moves = (policy == 'earliest' and due < date) or (policy == 'latest' and due > date)
    if policy == 'replace' or policy == 'after' or (moves and expires <= due) then
      return 'free', policy == 'after' and math.min(date, due) or due, band, id
    elseif moves then
      if not asks then
        if most then
          note_first(holder, first)
        end
        if lines then
          note(lines.move(holder, band, due))
        else
          redis.call('ZADD', BANDS[band], int(due), holder)
          note(due)
        end
        event('rescheduled', holder .. ' ' .. int(due) .. ' ' .. policy)
      end
      return 'moved'
    end
    return 'kept'
  end
end

-- Each job is read and written separately, because it may meet a job of the same call.
for i = 1, items do
  local id, record, policy, date, name = unpack(ARGV, FIRST + (i - 1) * STRIDE, FIRST + i * STRIDE - 1)
  local due = tonumber(date)
  if string.byte(date) == 43 then -- a plus: a delay
    due = now + due
    date = int(due)
  end
  local band, durable, key = bands[i], durables[i], keys[i]
  local status, holder = 'created', id
  local leaver, leaver_band, place_of
  local ended = redis.call('ZSCORE', k_finished, id)
  if redis.call('HEXISTS', k_jobs, id) == 1 and not is_nowhere(id, band) then
    status = redis.call('ZSCORE', k_failed, id) and 'failed' or 'again'
    due = redis.call('HEXISTS', k_runs, id) == 0 and (lines and lines.date_of(id, band) or redis.call('ZSCORE', BANDS[band], id)) or 0
    due = tonumber(due)
    date = int(due)
  elseif ended then
    status, date = end_of(ended), '0'
  elseif string.sub(policy, 1, 9) == 'replaced@' then
    redis.call('ZADD', k_finished, tombstone('displaced'), id)
    tell_displaced(id, string.sub(policy, 10))
    status, date = 'displaced', '0'
  else
    if key ~= '' then
      local other = holder_of(key)
      if must_ask(other) then
        status, holder = 'asked', other or ''
      elseif other and other ~= id then
        local date_then
        status, date_then, leaver_band, place_of = contest(id, other, key, policy, due)
        if status == 'free' then
          status, leaver = 'replaced', other
          if date_then ~= due then
            due, date = date_then, int(date_then)
          end
        else
          holder = status == 'forbidden' and '' or other
        end
      end
    end
    if asks then
      status = holder == id and 'free' or status
    elseif holder == id then
      redis.call('HSET', k_jobs, id, record) -- if Redis refuses what follows, a repeat schedules it: see nowhere.lua
      if name then
        give_name(id, name)
      end
      local most, first
      if key ~= '' then
        most, first = at_most(policy)
      end
      if most then
        first = first_of(place_of and leaver or id, first) -- a job that replaces one which would expire has its first date
        note_first(id, first)
        due = math.min(due, first + most)
        date = int(due)
      end
      if leaver then
        leave(leaver, leaver_band, place_of)
      end
      if lines then
        note(lines.put(id, band, due, redis.call))
      else
        redis.call('ZADD', BANDS[band], date, id)
        note(due)
      end
      if key ~= '' then
        redis.call('HSET', k_keys, key, id)
      end
      local fields = id .. ' ' .. date .. ' ' .. band
      event('scheduled', durable and fields or (fields .. '\n' .. record))
      created = created + 1
    elseif status ~= 'contested' and status ~= 'behind' and status ~= 'asked' then
      redis.call('ZADD', k_finished, tombstone('displaced'), id)
      event('merged', id .. ' ' .. (holder == '' and '-' or holder) .. ' ' .. (string.match(policy, '^%l+')))
    end
  end
  local r = (i - 1) * 3 + 1
  reply[r + 1], reply[r + 2], reply[r + 3] = status, holder, date
end

if created ~= 0 then
  redis.pcall('HINCRBY', k_stats, int(math.floor(now / 60000)) .. ':scheduled', created)
end
if lines then
  wake_for(lines.call())
end
if earliest then
  wake_for(earliest, armed)
end
publish()
return reply
