-- KEYS: head, document, history. ARGV: the head that is expected ("" for none), the new head, the document, the number of
-- entries that the history keeps, and "1" if the document takes the place of the newest entry.
-- Returns the head that holds afterwards.
local head = redis.call('GET', KEYS[1]) or ''
if head ~= ARGV[1] then
    return head
end
-- First, because it fails if something else has the key. The commands below replace whatever is there.
if ARGV[5] == '1' and redis.call('LLEN', KEYS[3]) > 0 then
    redis.call('LSET', KEYS[3], 0, ARGV[3])
else
    redis.call('LPUSH', KEYS[3], ARGV[3])
end
redis.call('LTRIM', KEYS[3], 0, ARGV[4] - 1)
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
return ARGV[2]
