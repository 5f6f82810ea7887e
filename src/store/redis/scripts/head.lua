-- Decides plans one after another, charging each of them completely or not at all, or settles the charge of a plan to
-- one partition.
--
-- KEYS      the partition and a key for each log and each concurrency limit, in the order of the policies; then the
--           same for each further partition
-- ARGV[1]   for each policy: its ID, its weight in three bytes, limit, bound, charge, weight and drain. The limit of a
--           shadow policy, which rejects nothing and skips charges above its limit, is negative. A policy with a
--           lockout is followed by the lockout, whose weight is its duration. A policy with initial units is preceded by
--           its first level, which is the bound of that entry; its weight is the time for which a caller is known. The
--           last eight bytes are the random number of the call, from which the numbers of new births and logs are
--           taken. To decide, the bound is the quota without its overage, plus the charge if it is not made
-- ARGV[2]   the lease of acquired or released slots, or empty
-- ARGV[3]   to settle: the time of the charge, its birth (negative if unknown), and the number that a refund needs for
--           each policy; empty to decide
-- ARGV[4]   the time in microseconds, for tests; otherwise, the server's time is used. Keys then live for an additional
--           hour, because the server's time continues while a test clock is stopped
-- ARGV[5]   a byte per partition with the number of its policies, if there are several partitions
-- ARGV[6]   a byte per plan with the number of its partitions, if there are several plans. A plan with several
--           partitions is processed twice: first to check that all charges fit, and then to make them
-- ARGV[7]   calendar boundaries, if needed; ARGV[5] and ARGV[6] may then be empty
--
-- To settle, each charge is the difference to the previous charge, nothing is rejected, and the limit is the age in
-- microseconds from which a charge is not refunded. Levels keep the parameters with which they were written.
--
-- A rejected plan charges nothing. If a bucket was written with other parameters, the plan is processed once more, to
-- convert the level to the parameters of the plan, or to record that the level keeps its rate. The first level of a new
-- caller is written in the same way.
--
-- Returns doubles: the server's time, and for each partition the difference between its time and the server's time, its
-- birth, and the previous usage of each policy, followed by the remaining time of its lockout. These are the readings
-- of src/algorithm. The usage of a bucket that was written with other parameters is sent as -1 - usage; the end of the
-- reply then contains its level, weight and drain, and the drain is negative if a rejection keeps it. The reply begins
-- with the first half of the call number and ends with the second, to detect lost bytes and replies to other calls.
--
-- The time of a partition is frozen while the server's time is behind it by a few seconds at most, so that a clock step
-- does not grant quota twice. Values from further in the future are treated as written now.
--
-- A value consists of a byte for its layout, the time of its levels, its birth, and the levels: policy ID, weight of a
-- unit, used weight, drain per microsecond. The birth identifies the lifetime of the value: earlier charges are not
-- refunded to it. In the narrow layout, used weights are below 2^32, the drain is 1 and omitted, and a weight is m * 16
-- + e, for m * 5^e. If not all levels are buckets, mixed layouts have another byte for the kind of each level. The
-- level of a window has its length in seconds, the count of the current window and the count of the previous window in
-- place of weight, usage and drain. The level of a calendar window has the second in which the count began in place of
-- the previous count, and the time from then to the end of its window in place of the length. If this time is 0, the
-- end is unknown. 2^52 is added to the drain of a bucket that keeps its rate although its policy has changed, until a
-- charge is admitted.
--
-- Layouts above those of this release, up to 31, belong to newer releases: their values are not changed, nothing is
-- charged, and the birth in the reply is -1.
--
-- The arithmetic is that of src/algorithm: integers below 2^53, in the same order. The script defines no functions,
-- because creating them in each call would take as long as the rest of the script.
--
-- The scripts also run with Lua 5.4, whose integers wrap at 2^63, in place of doubles that become inexact. Constants
-- such as `1000000.0` turn integers into doubles before they are multiplied.
local read, pack, sub, ceil, unpack = struct.unpack, struct.pack, string.sub, math.ceil, table.unpack or unpack
local CHARGE, NUMBER_SIZE, NARROW_MAX = 47, 8, 4294967295
local charges, lease, receipt, clock, part_sizes, plans = unpack(ARGV)
local extra_life = 3600000
clock = clock and tonumber(clock)
if clock then
  clock = clock * 1.0
else
  extra_life = 0
  local time = redis.call('TIME')
  clock = time[1] * 1000000.0 + time[2]
end
if receipt == '' then receipt = nil end
local parts = 1
if part_sizes then parts = #part_sizes end
-- The reply, the number of decided plans, and the first partition of the next plan.
local readings, width, plan, next_part, first_charge = nil, 1, 0, 1, 1
