-- The fast path, which takes half the time. It decides plans whose values contain up to four narrow buckets in the
-- order of the plan, and never settles. The general steps below process the first plan that does not qualify, and all
-- later ones. No plan contains a partition twice.
local LEVELS = '<BI7I3I4I3I4I4I3I4I4I3I4I4I3I4'
if not receipt then
  local redis = redis
  local count, counted, sizes, format = (#charges - NUMBER_SIZE) / CHARGE, 0, nil, nil
  if part_sizes then sizes, readings = { string.byte(part_sizes, 1, parts) }, { clock } end
  -- The current plan: its last partition, and the writes to the other partitions once everything fits, as three values
  -- each.
  local last_part, held, waiting, fits, is_charged = 0, nil, 0, true, false
  local told, first = width, first_charge
  for part = 1, parts do
    if part > last_part then
      last_part, waiting, fits, is_charged = parts, 0, true, false
      if plans then last_part = part + string.byte(plans, plan + 1) - 1 end
    end
    if sizes then count = sizes[part] end
    if count ~= counted then
      if count > 4 then break end
      counted, format = count, sub(LEVELS, 1, 6 + 6 * count)
    end
    local key = KEYS[part]
    local value = redis.pcall('GET', key)
    -- Local variables, because tables would take as much time as the rest of the script.
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
    local longest, is_used, amount1, amount2, amount3, amount4 = 0, false
--- buckets
    if longest > NARROW_MAX then break end
    if not is_used then birth = read('<I3', charges, #charges - 7) end
    if fits and (is_charged or part < last_part) then
      local packed, life = false, nil
      if longest > 0 then
        packed = pack(format, 5, clock, birth,
          id1, short1, used1, id2, short2, used2, id3, short3, used3, id4, short4, used4)
        -- Rounded up and as a string: Redis would format a number with 17 digits, which takes 4% of this script's
        -- instructions.
        life = string.format('%.0f', (longest + 499.5) / 1000 + extra_life)
      end
      if part < last_part then
        held = held or { nil, nil, nil }
        held[waiting + 1], held[waiting + 2], held[waiting + 3] = key, packed, life
        waiting = waiting + 3
      else
        for index = 1, waiting, 3 do
          if held[index + 1] then
            redis.call('SET', held[index], held[index + 1], 'PX', held[index + 2])
          else
            redis.call('DEL', held[index])
          end
        end
        if packed then redis.call('SET', key, packed, 'PX', life) elseif value then redis.call('DEL', key) end
      end
    end
    if not sizes then
      -- Packed directly, because concatenating three strings takes 3% of this script's instructions.
      local first, last = read('<I4I4', charges, #charges - 7)
      if count == 1 then return pack('<I4ddddI4', first, clock, 0, birth, amount1, last) end
      if count == 2 then return pack('<I4dddddI4', first, clock, 0, birth, amount1, amount2, last) end
      if count == 3 then return pack('<I4ddddddI4', first, clock, 0, birth, amount1, amount2, amount3, last) end
      return pack('<I4dddddddI4', first, clock, 0, birth, amount1, amount2, amount3, amount4, last)
    end
    readings[told + 1], readings[told + 2], readings[told + 3] = 0, birth, amount1
    if count > 1 then readings[told + 4], readings[told + 5], readings[told + 6] = amount2, amount3, amount4 end
    told, first = told + 2 + count, first + CHARGE * count
    if part == last_part then
      plan, next_part, width, first_charge = plan + 1, part + 1, told, first
    end
  end
end

