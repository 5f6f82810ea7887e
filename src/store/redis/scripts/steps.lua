local HEADER, OLD_HEADER, LARGEST = 11, 8, 2048
-- A value that has as many, 26 bytes each at most, is still read.
local MOST_LEVELS = 78
local NARROW, WIDE, NARROW_MIXED, WIDE_MIXED = 1, 2, 3, 4
-- What a layout has more than the older one with the same levels.
local WITH_BIRTH = 4
-- For so many microseconds at most, a partition's time stands still.
local STANDSTILL = 5000000
-- What a drain that is no drain stands for.
local FIXED_WINDOW, SLIDING_LOG, CONCURRENCY, SLIDING_COUNTER, CALENDAR, BLOCK = -1, -2, -3, -4, -5, -6
-- What a level is.
local BUCKET, WINDOW, COUNTER, DATED = 0, 1, 2, 3
local EXACT, floor = 9007199254740992, math.floor
-- In milliseconds.
local EXPIRY_JITTER = 60000

--- what
readings = readings or { clock, nil, nil, nil, nil, nil }
local steps, last_charge = 1, #charges - NUMBER_SIZE
if part_sizes then steps, last_charge = 2 * parts, first_charge - 1 end
if are_independent then steps = parts end
--- steps
local fits, is_charged, key_index, told = true, false, next_step - 1, 1
for step = next_step, steps do
  local is_trial = step < steps and step <= parts and not are_independent
--- which
  if are_independent then
    fits, is_charged = true, false
  elseif step == parts + 1 then
    if not fits then break end
    told, key_index, last_charge = width, 0, 0
  end
  if part_sizes then
    first_charge = last_charge + 1
    last_charge = last_charge + CHARGE * string.byte(part_sizes, (step - 1) % parts + 1)
  end
  key_index = key_index + 1
  local partition = KEYS[key_index]

