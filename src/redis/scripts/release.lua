local run = current_run(ARGV[1])
if not run then
  return 0
end
if run.known > now then
  local known = math.ceil(run.known / 1000)
  redis.call('SET', KEYS[1], string.format('-%.0f', run.attempt), 'PXAT', string.format('%.0f', known))
else
  redis.call('DEL', KEYS[1])
end
return 1
