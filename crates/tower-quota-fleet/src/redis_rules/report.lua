-- Adds the report of an instance, and deletes outdated reports of all instances.
-- KEYS[1]   the reports
-- ARGV[1]   the report
-- ARGV[2]   the age at which a report is deleted, in milliseconds
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
