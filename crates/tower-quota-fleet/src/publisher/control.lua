-- Replaces a control if its value is as expected.
-- KEYS[1]   the history of changes
-- KEYS[2]   the key of the control, whose value is compared
-- KEYS[3]   the access list, if it changes
-- ARGV[1]   the expected value; empty for none
-- ARGV[2]   the new value
-- ARGV[3]   the new entry of the history
-- ARGV[4]   the maximum number of entries in the history
-- ARGV[5]   the access list
-- Returns the value of the key after the call.
local before = redis.call('GET', KEYS[2]) or ''
if before ~= ARGV[1] then
    return before
end
-- First, because `LPUSH` fails if the key has a different type.
redis.call('LPUSH', KEYS[1], ARGV[3])
redis.call('LTRIM', KEYS[1], 0, ARGV[4] - 1)
if KEYS[3] then
    redis.call('SET', KEYS[3], ARGV[5])
end
redis.call('SET', KEYS[2], ARGV[2])
return ARGV[2]
