-- KEYS: the history of changes, the key that decides, and the access list if it changes. ARGV: the value that is expected
-- ("" for none), the new value, the entry of the history, the number of entries that it keeps, and the access list.
-- Returns the value of the key afterwards.
local before = redis.call('GET', KEYS[2]) or ''
if before ~= ARGV[1] then
    return before
end
-- First, because it fails if something else has the key.
redis.call('LPUSH', KEYS[1], ARGV[3])
redis.call('LTRIM', KEYS[1], 0, ARGV[4] - 1)
if KEYS[3] then
    redis.call('SET', KEYS[3], ARGV[5])
end
redis.call('SET', KEYS[2], ARGV[2])
return ARGV[2]
