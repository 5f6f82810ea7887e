  if is_later then at = now end
  local elapsed, age, ahead = now - at, 0, now - clock
  local charged_at, charged_birth
  if receipt then
    charged_at, charged_birth = read('<dd', receipt)
    if charged_birth < 0 then charged_birth = birth end
    if now > charged_at then age = now - charged_at end
  end
  readings[width + 1] = ahead
  width = width + 2
  local birth_place = width

  -- `levels` is the value after the charges, if all of them fit. `whole` contains the weight and the drain of each
  -- level; in the narrow layout, the weight is shortened and the drain is omitted. The tables have room for three
  -- buckets, because growing a table is expensive.
  local levels = { NARROW, now, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
  local whole, count, is_wide = { nil, nil, nil, nil, nil, nil }, 0, false
  -- Tables for other algorithms than buckets are created on demand.
  local kinds, logs, slots
  -- is_used: true if the value contains any usage. spent: the usage of a policy after its charge, in its weight.
  local known, longest, is_used, spent = 0, 0, false, nil
  -- Of a policy with initial units: its first level, how long its caller is known, and the time that is left of it.
  local first_level, known_for, known_left
  local is_short = layout == NARROW or layout == NARROW_MIXED
  for charge_position = first_charge, last_charge, CHARGE do
    local id, short, limit, bound, charge, weight, drain = read('<I4I3ddddd', charges, charge_position)
--- cost
    -- A policy with quota 0 is charged nothing.
    if charge ~= 0 and (limit ~= 0 or receipt) then is_charged = true end
    if is_moving then charge = 0 end
    local is_shadow = limit < 0
    if is_shadow then limit = -limit end

    -- The last writer usually had the same policies, so the level is usually at this position.
    local found, a, b, c, kind
    if drain ~= SLIDING_LOG and drain ~= CONCURRENCY then
      local position = HEADER + 1 + size * count
      if position < last then found, a, b, c, kind = read(format, value, position) end
      if found ~= id then
        for other = HEADER + 1, last, size do
          found, a, b, c, kind = read(format, value, other)
          if found == id then break end
        end
      end
      if found ~= id then
        kind = nil
      else
        known = known + 1
        if layout <= WIDE then kind = BUCKET end
        if layout == NARROW then c = 1 end
      end
      count = count + 1
    end

    if drain > 0 then
--- charge
    end
--- left
  end

