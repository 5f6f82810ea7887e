-- Renews leases of one concurrency limit, including those that the server has lost.
--
-- KEYS[1]  the holders of slots
-- ARGV[1]  the lease time in microseconds
-- ARGV[2]  the leases, sixteen bytes each, and the eight bytes of the call number
-- ARGV[3]  the time in microseconds, for tests; otherwise, the server's time is used
--
-- Returns the call number.
local LEASE, NUMBER_SIZE = 16, 8
-- In microseconds. No store grants longer leases.
local LONGEST_LEASE = 86400000000
local now, extra_life = tonumber(ARGV[3]), 3600000
if not now then
  extra_life = 0
  local time = redis.call('TIME')
  now = time[1] * 1000000.0 + time[2]
end
local ends = now + ARGV[1]
if type(redis.pcall('ZCARD', KEYS[1])) ~= 'number' then redis.call('DEL', KEYS[1]) end
for position = 1, #ARGV[2] - NUMBER_SIZE, LEASE do
  redis.call('ZADD', KEYS[1], ends, string.sub(ARGV[2], position, position + LEASE - 1))
end
-- Leases of other instances may last longer than these.
local life = tonumber(redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]) - now
if life > LONGEST_LEASE then life = LONGEST_LEASE end
redis.call('PEXPIRE', KEYS[1], math.ceil(life / 1000) + extra_life)
return string.sub(ARGV[2], -NUMBER_SIZE)
