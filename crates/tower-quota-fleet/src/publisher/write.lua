-- Publishes a document if the head is as expected.
-- KEYS      head, document, history, changes
-- ARGV[1]   the expected head; empty for none
-- ARGV[2]   the new head
-- ARGV[3]   the document
-- ARGV[4]   the maximum number of documents in the history
-- ARGV[5]   the new entry of the changes
-- ARGV[6]   the maximum number of changes
-- Returns the head after the call.
local head = redis.call('GET', KEYS[1]) or ''
if head ~= ARGV[1] then
    return head
end
-- First, because `LPUSH` fails if a key has a different type. `SET` below replaces values of any type.
redis.call('LPUSH', KEYS[3], ARGV[3])
redis.call('LPUSH', KEYS[4], ARGV[5])
redis.call('LTRIM', KEYS[3], 0, ARGV[4] - 1)
redis.call('LTRIM', KEYS[4], 0, ARGV[6] - 1)
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
return ARGV[2]
