-- Decisions of some plans, one after the other, each all or nothing; or the settlement of one for one partition.
--
-- KEYS      the partition, and a key for each log and each limit of concurrent requests, in the policies' order; then the
--           same for each further partition
-- ARGV[1]   for each policy: its id, its weight in three bytes, limit, bound, the charge, weight and drain; the limit is
--           negative for a shadow, which rejects nothing and takes no charge that is above it. After them the eight
--           bytes of the call's number, which is random: what begins with this call takes its own number from it. A
--           policy with a lockout is followed by that, with the lockout's length as its weight
-- ARGV[2]   who holds the slots that are taken or given back; empty if none are
-- ARGV[3]   to settle: the moment of the charge, the birth of what was charged, negative if it is unknown, and for each
--           policy what a refund has to know; empty to decide
-- ARGV[4]   the time in microseconds; tests only, else the server's. What is kept then stays for an hour longer than it
--           is needed, because the server's own time goes on while that of a test stands still
-- ARGV[5]   a byte for each partition, the number of its policies, if there are several partitions
-- ARGV[6]   a byte for each plan, the number of its partitions, if there are several plans. A plan with several partitions
--           is gone through twice: once to find out whether all charges fit, and once to make them
-- ARGV[7]   the borders of calendars, if there are any; ARGV[5] and ARGV[6] may be empty before it
--
-- To settle, a charge is the difference to what was charged before, nothing is rejected, and the limit is the age in
-- microseconds from which a charge is not taken back any more. Levels keep the numbers with which they were written.
--
-- A plan that is rejected charges nothing. If a bucket was written with other numbers, the plan is gone through once more,
-- to write the level in the numbers of the plan.
--
-- Returns as doubles the server's time, and of each partition by how much its own time is ahead of that, its birth, and
-- what each policy had used before, and after it what is left of its lockout: the reading of src/algorithm. The reply begins with the first half of the call's
-- number and ends with the second half: a reply that has lost bytes, or is another call's, is found out.
--
-- The time of a partition stands still while the server's is behind it by a few seconds at most, so that a step of the
-- clock gives no quota twice. What a clock has written that is farther ahead belongs to now.
--
-- A value is a byte for its layout, the moment to which its levels belong, its birth, and the levels: policy id, weight of
-- a unit, used weight, drain per microsecond. The birth is a number of those who have begun it: a charge that was made
-- before is not given back to it. The narrow layout has used weights below 2^32, leaves out a drain, which is 1, and
-- writes a weight as m * 16 + e, which stands for m * 5^e. Where not all levels are buckets, mixed layouts have a byte
-- more, that says what a level is. The level of a window has in place of weight, used and drain: its length in seconds,
-- the count of this window, the count of the last one; the byte that says so also has the exponent of the power of two
-- above the quota that was charged last, which bounds late charges. That of a calendar's window has the window's start in seconds in
-- place of the last count. Where its length is 0, the second is a moment of the window that is meant.
--
-- Layouts above these and up to 31 are those of newer releases: their values stay, and nothing is charged. The birth in the
-- reply is then -1.
--
-- Older instances write layouts without a birth, and in the narrow ones weights in four bytes, and do not read others. A
-- value that has one keeps it until it is gone.
--
-- The arithmetic is that of src/algorithm: integers below 2^53, in the same order. There are no functions here, because
-- making them at each call would take as long as all the rest.
local read, pack, sub, ceil = struct.unpack, struct.pack, string.sub, math.ceil
local CHARGE, NUMBER_SIZE, NARROW_MAX = 47, 8, 4294967295
local charges, lease, receipt, clock, part_sizes, plans = unpack(ARGV)
local extra_life = 3600000
clock = clock and tonumber(clock)
if not clock then
  extra_life = 0
  local time = redis.call('TIME')
  clock = time[1] * 1000000 + time[2]
end
if receipt == '' then receipt = nil end
local parts = 1
if part_sizes then parts = #part_sizes end
-- The reply, the number of plans that are decided, and the first partition of the next one.
local readings, width, plan, next_part, first_charge = nil, 1, 0, 1, 1
