local run = current_run(ARGV[1])
if not run then
  return 0
end
run.ends = now + tonumber(ARGV[2])
write_run(run)
return 1
