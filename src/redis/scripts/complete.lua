local run = current_run(ARGV[1])
if not run then
  return 0
end
local retain = math.ceil(tonumber(ARGV[2]) / 1000)
redis.call('SET', KEYS[1], run.body, 'PX', string.format('%.0f', retain))
return 1
