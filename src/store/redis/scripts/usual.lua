-- The usual case, in half the time: nothing to settle, independent partitions, and values that hold up to four narrow
-- buckets, those of the plan in its order. Whatever is otherwise is left to the steps below, beginning with the first
-- partition that is.
local LEVELS = '<BI7I3I4I3I4I4I3I4I4I3I4I4I3I4'
if not receipt and (are_independent or not part_sizes) then
  local redis = redis
  local count, counted, sizes, format = (#charges - NUMBER_SIZE) / CHARGE, 0, nil, nil
  if part_sizes then sizes, readings = { string.byte(part_sizes, 1, parts) }, { clock } end
  for step = 1, parts do
    if sizes then count = sizes[step] end
    if count ~= counted then
      if count > 4 then break end
      counted, format = count, sub(LEVELS, 1, 6 + 6 * count)
    end
    local key = KEYS[step]
    local value = redis.pcall('GET', key)
    -- Locals, because tables and what is read from them would cost as much as all the rest.
    local layout, at, birth, id1, short1, used1, id2, short2, used2, id3, short3, used3, id4, short4, used4
    if not value then
      at = clock
    elseif #value == 11 + 11 * count then
      layout, at, birth, id1, short1, used1, id2, short2, used2, id3, short3, used3, id4, short4, used4
        = read(format, value)
      if layout ~= 5 then break end
    else
      break
    end
    local elapsed = clock - at
    if elapsed < 0 then break end
    local longest, fits, is_charged, is_used, amount1, amount2, amount3, amount4 = 0, true, false, false
--- buckets
    if longest > NARROW_MAX then break end
    if not is_used then birth = read('<I3', charges, #charges - 7) end
    if fits and is_charged then
      if longest > 0 then
        local packed = pack(format, 5, clock, birth,
          id1, short1, used1, id2, short2, used2, id3, short3, used3, id4, short4, used4)
        -- Rounded up, and as a string: Redis would write a number with 17 digits, 4 % of this script's instructions.
        redis.call('SET', key, packed, 'PX', string.format('%d', (longest + 999) / 1000 + extra_life))
      elseif value then
        redis.call('DEL', key)
      end
    end
    if not sizes then
      -- Packed at once: to put three strings together takes 3 % of this script's instructions.
      local first, last = read('<I4I4', charges, #charges - 7)
      if count == 1 then return pack('<I4ddddI4', first, clock, 0, birth, amount1, last) end
      if count == 2 then return pack('<I4dddddI4', first, clock, 0, birth, amount1, amount2, last) end
      if count == 3 then return pack('<I4ddddddI4', first, clock, 0, birth, amount1, amount2, amount3, last) end
      return pack('<I4dddddddI4', first, clock, 0, birth, amount1, amount2, amount3, amount4, last)
    end
    readings[width + 1], readings[width + 2], readings[width + 3] = 0, birth, amount1
    if count > 1 then readings[width + 4], readings[width + 5], readings[width + 6] = amount2, amount3, amount4 end
    width = width + 2 + count
    first_charge, next_step = first_charge + CHARGE * count, step + 1
  end
end

