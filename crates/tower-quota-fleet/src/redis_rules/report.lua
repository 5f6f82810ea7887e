-- KEYS: the reports of instances. ARGV: a report, the milliseconds after which reports are deleted, and the reports of the
-- same instance that may be there from before.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for index = 3, #ARGV do
    redis.call('ZREM', KEYS[1], ARGV[index])
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
