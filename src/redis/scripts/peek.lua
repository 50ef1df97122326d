local value = redis.call('GET', KEYS[1])
if not value or string.match(value, '^%-%d+$') then
  return {FREE}
end
if string.match(value, '^%d+$') then
  return {DONE}
end
local run = parse_run(value)
if not run then
  return corrupt()
end
if run.ends > now then
  return {IN_FLIGHT, run.ends - now}
end
return {FREE}
