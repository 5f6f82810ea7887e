-- Writes a field of an entry, deletes expired fields, and sets the entry to expire with its last field.
-- KEYS[1]   the entry
-- ARGV[1]   the field
-- ARGV[2]   the value of the field, as JSON
-- ARGV[3]   1 to keep an existing field
-- ARGV[4]   the maximum number of top-ups per entry
-- Returns 1, 0 if the field was kept, or -1 if the entry is full.

-- Returns the expiry of a field, in seconds since the Unix epoch: `until` of a top-up, or of a contract's quotas.
local function end_of(json)
  local is_json, value = pcall(cjson.decode, json)
  if not is_json or type(value) ~= 'table' then return math.huge end
  if type(value.quotas) == 'table' then value = value.quotas end
  return tonumber(value['until']) or math.huge
end

local now = tonumber(redis.call('TIME')[1])
local last, top_ups = end_of(ARGV[2]), 0
local all = redis.call('HGETALL', KEYS[1])
for index = 1, #all, 2 do
  local ends = end_of(all[index + 1])
  if ends <= now then
    redis.call('HDEL', KEYS[1], all[index])
  elseif all[index] ~= ARGV[1] then
    last = math.max(last, ends)
    if all[index] ~= 'contract' then top_ups = top_ups + 1 end
  elseif ARGV[3] == '1' then
    return 0
  end
end
if ARGV[1] ~= 'contract' and top_ups >= tonumber(ARGV[4]) then return -1 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
-- Redis rejects a later expiry.
if last < 9e12 then
  redis.call('EXPIREAT', KEYS[1], string.format('%.0f', last))
else
  redis.call('PERSIST', KEYS[1])
end
return 1
