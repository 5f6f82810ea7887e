-- Three windows of GCRA, all or nothing, in one key: about the least that such a decision can be.
--
-- ARGV[1]  for each window how long one unit takes and how much debt is allowed, in microseconds
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local unit1, most1, unit2, most2, unit3, most3 = struct.unpack('<dddddd', ARGV[1])
local at1, at2, at3 = now, now, now
local value = redis.call('GET', KEYS[1])
if value then
  at1, at2, at3 = struct.unpack('<ddd', value)
  if at1 < now then at1 = now end
  if at2 < now then at2 = now end
  if at3 < now then at3 = now end
end
local next1, next2, next3 = at1 + unit1, at2 + unit2, at3 + unit3
if next1 - now > most1 or next2 - now > most2 or next3 - now > most3 then
  return struct.pack('<Bdddd', 0, now, at1, at2, at3)
end
local last = next1
if next2 > last then last = next2 end
if next3 > last then last = next3 end
redis.call('SET', KEYS[1], struct.pack('<ddd', next1, next2, next3), 'PX', math.ceil((last - now) / 1000))
return struct.pack('<Bdddd', 1, now, next1, next2, next3)
