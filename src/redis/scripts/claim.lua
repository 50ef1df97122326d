local fence, body, lease, retain = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local attempts = 0
local value = redis.call('GET', KEYS[1])
if value then
  local run = parse_run(value)
  if run and run.ends > now then
    -- The answer to a first try may have been lost with its connection.
    if run.fence == fence then
      return {FREE, run.attempt}
    end
    return {IN_FLIGHT, run.ends - now, run.body == body and 1 or 0}
  elseif run then
    -- The lease has expired, so the attempt has failed and the next one counts on.
    attempts = run.attempt
  elseif string.match(value, '^%-%d+$') then
    attempts = -tonumber(value)
  elseif string.match(value, '^%d+$') then
    return {DONE, value == body and 1 or 0}
  else
    return corrupt()
  end
end

-- The store reads the number into 32 bits, and takes a larger one for corrupt.
local attempt = math.min(attempts + 1, 4294967295)
write_run({
  ends = now + lease,
  known = now + retain,
  attempt = attempt,
  fence = fence,
  body = body,
})
return {FREE, attempt}
