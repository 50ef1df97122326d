-- What a key holds, shortest where it is held longest:
--   in flight  "UNTIL KNOWN ATTEMPT FENCE BODY", times in microseconds of the server's clock
--   failed     "-ATTEMPTS" until they are forgotten
--   done       "BODY" for its retention
-- Redis keeps the last two as integers, without a string.

-- What a key is found to be, first in every answer.
local FREE, IN_FLIGHT, DONE = 0, 1, 2

-- All receivers use this clock, so a receiver with a wrong clock takes no lease from another.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function corrupt()
  return redis.error_reply('CORRUPT the key holds something that this store never writes')
end

local function parse_run(value)
  local ends, known, attempt, fence, body = string.match(value, '^(%d+) (%d+) (%d+) (%x+) (%d+)$')
  if ends then
    return {
      ends = tonumber(ends),
      known = tonumber(known),
      attempt = tonumber(attempt),
      fence = fence,
      body = body,
    }
  end
end

local function write_run(run)
  -- `tostring` keeps 14 digits, and a time in microseconds has 16.
  local value = string.format(
    '%.0f %.0f %.0f %s %s', run.ends, run.known, run.attempt, run.fence, run.body)
  -- The lease may be longer than the retention, and an attempt is known after its lease: the later end counts.
  local gone = math.ceil(math.max(run.ends, run.known) / 1000)
  redis.call('SET', KEYS[1], value, 'PXAT', string.format('%.0f', gone))
end

-- The run that holds the key with this fence, while its lease lasts.
local function current_run(fence)
  local value = redis.call('GET', KEYS[1])
  local run = value and parse_run(value)
  if run and run.fence == fence and run.ends > now then
    return run
  end
end
