-- One decision: all windows of one partition, all or nothing.
--
-- KEYS[1]  the partition
-- ARGV[1]  the charges: id, weight, drain, limit, bound and the charge itself, for each policy
-- ARGV[2]  the time in microseconds; tests only, else the server's. A value then stays for an hour longer than it is
--          needed, because the server's own time goes on while that of a test stands still
--
-- Returns the time and what each policy had used before, as doubles.
--
-- A value is a byte for its layout, the moment to which its levels belong, and the levels: policy id, weight of a unit,
-- used weight, drain per microsecond. The narrow layout has numbers below 2^32 and leaves out a drain, which is 1.
--
-- The arithmetic is that of src/algorithm: integers below 2^53, in the same order. There are no functions here, because
-- making them at each call would take as long as all the rest.
local HEADER, CHARGE, LARGEST = 8, 44, 2048
local NARROW, WIDE = 1, 2
local EXACT, NARROW_MAX = 9007199254740992, 4294967295
local read, floor, ceil = struct.unpack, math.floor, math.ceil

local charges = ARGV[1]
local now, extra_life = tonumber(ARGV[2]), 3600000
if not now then
  extra_life = 0
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- A key of another type, or a value that was not written here, is as good as none.
local value = redis.pcall('GET', KEYS[1])
local layout, format, size, last, elapsed = NARROW, '<I4I4I4', 12, 0, 0
if type(value) == 'string' and #value > HEADER and #value <= LARGEST then
  local its_layout, at = read('<BI7', value)
  if its_layout == WIDE then layout, format, size = WIDE, '<I4I7I7I7', 25 end
  if its_layout == layout and (#value - HEADER) % size == 0 then
    last = #value
    if now > at then elapsed = now - at end
  end
end

-- `used` is what the policies had used before; `levels` what the value holds after the charges, if all of them fit.
local used, levels, drains, count = {}, { NARROW, now }, {}, 0
local fits, is_charged, known, longest = true, false, 0, 0
for charge_position = 1, #charges, CHARGE do
  local id, weight, drain, limit, bound, charge = read('<I4ddddd', charges, charge_position)

  -- Most often a level stands where the last writer, with the same policies, has put it.
  local found, its_weight, its_used, its_drain
  local position = HEADER + 1 + size * count
  if position < last then found, its_weight, its_used, its_drain = read(format, value, position) end
  if found ~= id then
    for other = HEADER + 1, last, size do
      found, its_weight, its_used, its_drain = read(format, value, other)
      if found == id then break end
    end
  end

  local amount = 0
  if found == id then
    known = known + 1
    if layout == NARROW then its_drain = 1 end
    amount = its_used - elapsed * its_drain
    if amount < 0 or its_weight == 0 or its_drain == 0 or its_used >= EXACT then amount = 0 end
    -- The same number of units in another weight.
    if its_weight ~= weight and amount > 0 then
      local units = floor(amount / its_weight)
      local part = amount - units * its_weight
      local product = part * weight
      if product < EXACT then part = ceil(product / its_weight) else part = ceil(part / its_weight * weight) end
      amount = units * weight + part
    end
    if amount > bound then amount = bound end
  end

  count = count + 1
  used[count] = amount
  amount = amount + charge
  if amount > limit then fits = false end
  if charge > 0 then is_charged = true end
  levels[3 * count], levels[3 * count + 1], levels[3 * count + 2], drains[count] = id, weight, amount, drain
  if drain ~= 1 or weight > NARROW_MAX or amount > NARROW_MAX then levels[1] = WIDE end
  if amount / drain > longest then longest = amount / drain end
end

if fits and is_charged then
  -- Levels of policies that only another instance has are drained by their own rate, and kept until they are empty.
  if HEADER + known * size < last then
    for position = HEADER + 1, last, size do
      local id, weight, amount, drain = read(format, value, position)
      if layout == NARROW then drain = 1 end
      amount = amount - elapsed * drain
      local is_kept = amount > 0 and amount < EXACT and weight > 0 and drain > 0
      for index = 1, #used do is_kept = is_kept and levels[3 * index] ~= id end
      if is_kept then
        count = count + 1
        levels[3 * count], levels[3 * count + 1], levels[3 * count + 2], drains[count] = id, weight, amount, drain
        if drain ~= 1 or weight > NARROW_MAX or amount > NARROW_MAX then levels[1] = WIDE end
        if amount / drain > longest then longest = amount / drain end
      end
    end
  end
  local level = 'I4I4I4'
  if levels[1] == WIDE then
    level = 'I4I7I7I7'
    for index = count, 1, -1 do table.insert(levels, 3 * index + 3, drains[index]) end
  end
  local packed = struct.pack('<BI7' .. string.rep(level, count), unpack(levels))
  redis.call('SET', KEYS[1], packed, 'PX', ceil(longest / 1000) + extra_life)
end
return struct.pack('<' .. string.rep('d', #used + 1), now, unpack(used))
