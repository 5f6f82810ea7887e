-- KEYS: head, document, history, changes. ARGV: the head that is expected ("" for none), the new head, the document, the number
-- of entries that the history keeps, the entry of the changes, and the number of those that are kept.
-- Returns the head that holds afterwards.
local head = redis.call('GET', KEYS[1]) or ''
if head ~= ARGV[1] then
    return head
end
-- First, because they fail if something else has the key. The commands below replace whatever is there.
redis.call('LPUSH', KEYS[3], ARGV[3])
redis.call('LPUSH', KEYS[4], ARGV[5])
redis.call('LTRIM', KEYS[3], 0, ARGV[4] - 1)
redis.call('LTRIM', KEYS[4], 0, ARGV[6] - 1)
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
return ARGV[2]
