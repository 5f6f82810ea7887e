-- Writes a field of an entry, deletes the fields that have ended, and lets the entry end with its last field.
-- KEYS[1]   the entry
-- ARGV[1]   the field
-- ARGV[2]   its JSON
-- ARGV[3]   the second at which the field ends, or empty
-- ARGV[4]   1 if a field that exists is kept
-- ARGV[5]   the most top-ups of an entry
-- Returns 1, 0 if the field was kept, or -1 if the entry is full.
local now = tonumber(redis.call('TIME')[1])
local last, top_ups = tonumber(ARGV[3]) or math.huge, 0
local all = redis.call('HGETALL', KEYS[1])
for index = 1, #all, 2 do
  local is_json, value = pcall(cjson.decode, all[index + 1])
  local ends = is_json and type(value) == 'table' and tonumber(value['until']) or math.huge
  if ends <= now then
    redis.call('HDEL', KEYS[1], all[index])
  elseif all[index] ~= ARGV[1] then
    last = math.max(last, ends)
    if all[index] ~= 'contract' then top_ups = top_ups + 1 end
  elseif ARGV[4] == '1' then
    return 0
  end
end
if ARGV[1] ~= 'contract' and top_ups >= tonumber(ARGV[5]) then return -1 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- Redis takes no later ends.
if last < 9e12 then
  redis.call('EXPIREAT', KEYS[1], string.format('%.0f', last))
else
  redis.call('PERSIST', KEYS[1])
end
return 1
