-- Adds the report of an instance, and deletes its previous reports and outdated reports of all instances.
-- KEYS[1]     the reports
-- ARGV[1]     the report
-- ARGV[2]     the age at which a report is deleted, in milliseconds
-- ARGV[3..]   previous reports of the instance, which the set may contain
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for index = 3, #ARGV do
    redis.call('ZREM', KEYS[1], ARGV[index])
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
