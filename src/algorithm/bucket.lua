--- numbers
local BUCKET = 0

-- Token bucket and leaky bucket.

--- usual
    if count >= @ then
      local id, short, limit, _, charge = read('<I4I3ddd', charges, first + CHARGE * @ - CHARGE)
      if id@ ~= id or short@ ~= short then
        if value then break end
        id@, short@, used@ = id, short, 0
      end
      amount@ = used@ - elapsed
      if amount@ > 0 then is_used = true else amount@ = 0 end
      if charge ~= 0 then is_charged = true end
      used@ = amount@ + charge
      if used@ > limit then
        if limit >= 0 then fits = false elseif used@ > -limit then used@ = amount@ end
      end
      if used@ > longest then longest = used@ end
    end

--- charge
      -- The level in the numbers with which it was written, which a settlement keeps.
      local level, unit, rate, its_short, is_kept = 0, weight, drain, short, false
      if kind == BUCKET and c >= KEEPS_RATE then c, is_kept = c - KEEPS_RATE, true end
      if kind == BUCKET and a > 0 and a < EXACT and c > 0 and c < KEEPS_RATE and b < EXACT then
        level = b - elapsed * c
        if level > 0 and is_short and a ~= short then
          unit, its_short = floor(a / 16), a
          for _ = 1, a - unit * 16 do unit = unit * 5 end
          if unit == 0 or unit >= EXACT then level = 0 end
        elseif level > 0 and not is_short and a ~= weight then
          unit, its_short = a, 0
        end
      end
      if level > 0 then
        is_used, rate = true, c
      else
        level, unit, its_short, is_kept = 0, weight, short, false
      end
      local is_new = false
      if first_level then
        if level == 0 and known_left == 0 then level, is_new, is_changed = first_level, true, true end
        if is_new or not is_moving then known_left = known_for end
        levels[3 * count] = known_left
        if known_left > NARROW_MAX then is_wide = true end
        if known_left > longest then longest = known_left end
        first_level = nil
      end
      local amount, convert = level, nil
      local is_other = unit ~= weight or rate ~= drain
      if is_other then
        -- Converts a number of units to another weight.
        convert = function(its, from, to, round)
          if from == to then return its end
          local units = floor(its / from) * 1.0
          local part = its - units * from
          local product = part * to
          if product < EXACT then part = round(product / from) else part = round(part / from * to) end
          return units * to + part
        end
        amount = convert(level, unit, weight, ceil)
        if amount > EXACT - 1 then amount = EXACT - 1 end
      end
      width = width + 1
      readings[width] = amount
      local after = level
      if not receipt then
        local keeps_rate = false
        if is_other then
          -- A level above the capacity keeps a faster rate until the next admitted charge.
          keeps_rate = amount == EXACT - 1 or (rate / unit > drain / weight and (is_kept or amount > limit))
          if not (keeps_rate and is_kept) then is_changed = true end
          -- While units of a partial plan are tried, `told` is 1.
          if limit > 0 and (told or 1) == 1 then
            rates = rates or {}
            local place = #rates
            rates[place + 1], rates[place + 2], rates[place + 3] = level, unit, rate
            if keeps_rate then rates[place + 3] = -rate end
            readings[width] = -1 - amount
          end
          is_kept = keeps_rate
        end
        local is_over = amount + charge > limit
        if is_over and not is_shadow and not is_moving then fits = false end
        if not keeps_rate or not (is_over or is_moving) then
          unit, rate, its_short, after, is_kept = weight, drain, short, amount, is_kept and is_moving
          if not is_over then after = amount + charge end
        end
      elseif charge > 0 then
        local more, most = charge, bound
        if is_other then more, most = convert(charge, weight, unit, ceil), convert(bound, weight, unit, ceil) end
        if most > EXACT - 1 then most = EXACT - 1 end
        after = level + more
        if after > most then after = most end
        if after < level then after = level end
      elseif charge < 0 and age < limit and charged_birth == birth and not is_new then
        local mark = read('<d', receipt, (charge_position - 1) / CHARGE * 8 + 17)
        -- The part of the charge that was not refilled, assuming that nothing else was charged since.
        local is_leaky, left = mark < 0, mark
        if is_leaky then mark = -mark end
        left = mark - age * drain
        if left < 0 then left = 0 end
        if is_leaky then
          -- Only the last place in the queue can be refunded. A place is the last if nothing was charged since.
          if level == left and not is_other then after = level + charge end
        else
          -- Units that have been refilled are not refunded.
          local refund = -charge
          if left < refund then refund = left end
          if is_other then
            refund, left = convert(refund, weight, unit, floor), convert(mark, weight, unit, floor)
            if left > EXACT - 1 then left = EXACT - 1 end
            left = left - age * rate
            if left < 0 then left = 0 end
            if left < refund then refund = left end
          end
          after = level - refund
        end
        if after < 0 then after = 0 end
      end
      spent = after
      if receipt and is_other then
        spent = convert(after, unit, weight, ceil)
        if spent > EXACT - 1 then spent = EXACT - 1 end
      end
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, its_short, after
      if after / rate > longest then longest = after / rate end
      if is_kept then rate = rate + KEEPS_RATE end
      whole[2 * count - 1], whole[2 * count] = unit, rate
      if rate ~= 1 or its_short == 0 or after > NARROW_MAX then is_wide = true end

--- left
      if drain > 0 then
        left = readings[width]
        if left < 0 then left = -1 - left end
        left = floor((limit - left) / weight)

--- carry
      if kind == BUCKET then
        local its_rate = c
        if c >= KEEPS_RATE then its_rate = c - KEEPS_RATE end
        if b < EXACT and a > 0 and its_rate > 0 then
          b = b - elapsed * its_rate
          life = b / its_rate
        end
