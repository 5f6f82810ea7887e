local HEADER, LARGEST = 11, 2048
-- A value with this many levels, of at most 26 bytes each, is still readable.
local MOST_LEVELS = 78
local NARROW, WIDE, NARROW_MIXED, WIDE_MIXED = 5, 6, 7, 8
-- Layouts up to this number belong to this release or newer ones.
local LAST_LAYOUT = 31
-- The maximum time in microseconds for which the time of a partition is frozen.
local MAX_CLOCK_STEP = 5000000
-- Each algorithm has a negative value of the drain, unless it is a bucket, and if it has levels, their kind.
--- numbers
local EXACT, floor = 9007199254740992, math.floor
-- Added to the drain of a level that keeps its rate, which is below 2^50.
local KEEPS_RATE = 4503599627370496
-- Exceeds every count that charges can reach.
local MOST_COUNT = 2251799813685248
-- All entries of a log, or all leases, may expire at the same time. Each charge therefore removes a limited number of
-- them, and each call moves a limited number of log entries from the future to now. Later calls continue.
local MOST_CLEARED, movable = 100, 1000
-- In milliseconds.
local EXPIRY_JITTER = 60000

--- what
readings = readings or { clock, nil, nil, nil, nil, nil }
local part, last_part, key_index, last_charge = next_part - 1, next_part - 1, next_part - 1, first_charge - 1
-- The current plan: where it begins, and once it is charged, the width of its readings.
local first_part, first_key, charges_before, told
-- The rates of buckets that were written with other parameters, for the end of the reply.
local rates
local is_trial, fits, is_charged = false, true, false
-- A rejected plan whose buckets were written with other parameters is processed once more, without charges.
local may_move, is_changed, is_moving = not receipt, false, false
while true do
  part = part + 1
  if part > last_part then
    local is_again = is_trial and fits and is_charged
--- again
    if not is_again and not fits and is_changed and is_charged and may_move and not is_moving then
      is_again, is_moving = true, true
    end
    if is_again then
      is_trial, told = false, told or width
      part, key_index, last_charge = first_part, first_key, charges_before
    else
      if told then width, told = told, nil end
      if part > parts then break end
      plan, first_part, first_key, charges_before, last_part = plan + 1, part, key_index, last_charge, parts
      if plans then last_part = part + string.byte(plans, plan) - 1 end
      is_trial, fits, is_charged, is_changed, is_moving = last_part > part, true, false, false, false
--- trial
    end
  end
  first_charge = last_charge + 1
  if part_sizes then
    last_charge = last_charge + CHARGE * string.byte(part_sizes, part)
  else
    last_charge = #charges - NUMBER_SIZE
  end
  key_index = key_index + 1
  local partition = KEYS[key_index]

