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
      local level, unit, rate, its_short = 0, weight, drain, short
      if kind == BUCKET and a > 0 and c > 0 and b < EXACT then
        level = b - elapsed * c
        if level > 0 and is_short and a ~= short then
          unit, its_short = floor(a / 16), a
          for _ = 1, a - unit * 16 do unit = unit * 5 end
          if unit == 0 then level = 0 end
        elseif level > 0 and not is_short and a ~= weight then
          unit, its_short = a, 0
        end
        if level > 0 then is_used, rate = true, c else level, unit, its_short = 0, weight, short end
      end
      local amount, convert = level, nil
      local is_other = unit ~= weight or rate ~= drain
      if is_other then
        -- Converts a number of units to another weight.
        convert = function(its, from, to, round)
          if from == to then return its end
          local units = floor(its / from)
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
        local keeps_rate = amount == EXACT - 1
        if is_other then
          local own_rate, its_rate = drain / weight, rate / unit
          if its_rate > own_rate and b / unit > limit / weight then
            -- A level above the capacity keeps the faster rate until the next admitted charge.
            keeps_rate = true
            -- If the charge never fits, the reading is made for one unit.
            local asked = charge
            if asked > limit then asked = weight end
            -- In this order no sum exceeds 2^53.
            local over = asked - limit + amount
            if over > 0 then
              local reading = limit - asked + (ceil(over * own_rate / its_rate) + 1)
              if reading < amount then readings[width] = reading end
            end
          end
          if not keeps_rate then is_changed = true end
        end
        local is_over = amount + charge > limit
        if is_over and not is_shadow and not is_moving then fits = false end
        if not keeps_rate or not (is_over or is_moving) then
          unit, rate, its_short, after = weight, drain, short, amount
          if not is_over then after = amount + charge end
        end
      elseif charge > 0 then
        -- The capacity of the policy that wrote the level is unknown. Its rate bounds the debt, and a higher level
        -- implies a larger capacity.
        local more, twice = charge, bound
        if is_other then more, twice = convert(charge, weight, unit, ceil), convert(bound, weight, unit, ceil) end
        local most = twice
        if is_other then
          local longest_debt = limit
          if longest_debt < SHORTEST_DEBT then longest_debt = SHORTEST_DEBT end
          if 2 * longest_debt * rate > most then most = 2 * longest_debt * rate end
        end
        if level > most then most = level + twice end
        if most > EXACT - 1 then most = EXACT - 1 end
        after = level + more
        if after > most then after = most end
      elseif charge < 0 and age < limit and charged_birth == birth then
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
      whole[2 * count - 1], whole[2 * count] = unit, rate
      if rate ~= 1 or its_short == 0 or after > NARROW_MAX then is_wide = true end
      if after / rate > longest then longest = after / rate end

--- left
      if drain > 0 then
        left = floor((limit - readings[width]) / weight)

--- carry
      if kind == BUCKET then
        if b < EXACT and a > 0 and c > 0 then
          b = b - elapsed * c
          life = b / c
        end
