-- Adds the report of an instance, and deletes outdated reports of all instances.
-- KEYS[1]   the reports
-- ARGV[1]   the report
-- ARGV[2]   the age at which a report is deleted, in milliseconds
local time = redis.call('TIME')
-- Not rounded, so that two reports of one millisecond are in order.
local now = time[1] * 1000 + time[2] / 1000
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
-- If the clock has stepped back, earlier reports would count as later ones.
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + 5000, '+inf')
