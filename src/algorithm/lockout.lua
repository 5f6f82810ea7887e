--- numbers
local LOCKOUT = -6

-- A lockout. Its remaining time is stored as a bucket of microseconds, so that every script can carry it.

--- charge
    elseif drain == LOCKOUT then
      -- The lockout applies to the previous policy.
      local left = 0
      if kind == BUCKET and c == 1 and b < EXACT then
        left = b - elapsed
        if left > 0 then is_used = true else left = 0 end
      end
      local _, _, _, _, _, its_weight, its_drain = read('<I4I3ddddd', charges, charge_position - CHARGE)
      local its, unit, moved, is_over = count - 1, 1, nil, nil
      if its_drain == SLIDING_LOG then
        spent, moved = logged, logged - readings[width - 4]
      else
        moved = spent - readings[width]
      end
      if its_drain > 0 then unit = its_weight end
      if its_drain == SLIDING_COUNTER then
        local previous, overlap = whole[2 * its], its_weight - (now - floor(now / its_weight) * its_weight)
        local room, weight = limit - spent - 1, its_weight
        moved = moved + previous - readings[width - 1]
@over
      else
        is_over = spent + unit > limit
      end
      width = width + 1
      readings[width] = left
      if not receipt then
        if left > 0 then fits = false elseif charge > 0 and is_over then left = weight end
      elseif moved > 0 then
        if left == 0 and is_over then left = weight end
      elseif moved < 0 and not is_over then
        left = 0
      end
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, left
      whole[2 * count - 1], whole[2 * count] = 1, 1
      if left > NARROW_MAX then is_wide = true end
      if left > longest then longest = left end

--- left
      elseif drain == LOCKOUT then
        left = most

