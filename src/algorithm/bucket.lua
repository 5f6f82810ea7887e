-- Token bucket and leaky bucket.

--- usual
    if count >= @ then
      local id, short, limit, bound, charge = read('<I4I3ddd', charges, first + CHARGE * @ - CHARGE)
      if id@ ~= id or short@ ~= short then
        if value then break end
        id@, short@, used@ = id, short, 0
      end
      amount@ = used@ - elapsed
      if amount@ > bound then amount@ = bound end
      if amount@ > 0 then is_used = true else amount@ = 0 end
      if charge ~= 0 then is_charged = true end
      used@ = amount@ + charge
      if used@ > limit then
        if limit >= 0 then fits = false elseif used@ > -limit then used@ = amount@ end
      end
      if used@ > longest then longest = used@ end
    end

--- charge
      local amount = 0
      if kind == BUCKET then
        amount = b - elapsed * c
        if amount < 0 or a == 0 or c == 0 or b >= EXACT then amount = 0 end
        if is_short then
          if a == short then
            a = weight
          else
            local fives
            a, fives = floor(a / 16), a - floor(a / 16) * 16
            for _ = 1, fives do a = a * 5 end
            if a == 0 then amount = 0 end
          end
        end
        -- The same number of units in another weight.
        if a ~= weight and amount > 0 then
          local units = floor(amount / a)
          local part = amount - units * a
          local product = part * weight
          if product < EXACT then part = ceil(product / a) else part = ceil(part / a * weight) end
          amount = units * weight + part
        end
        if amount > bound then amount = bound end
        if amount > 0 then is_used = true end
      end
      width = width + 1
      readings[width] = amount
      local after = amount + charge
      if not receipt then
        if after > limit then
          if is_shadow then after = amount else fits = false end
        end
      elseif charge >= 0 then
        if after > bound then after = bound end
      else
        local mark = read('<d', receipt, (charge_position - 1) / CHARGE * 8 + 17)
        after = amount
        if age < limit and charged_birth == birth then
          -- The rest of the level to which it was filled, as if no request had come since.
          local is_leaky, left = mark < 0, mark
          if is_leaky then left = -mark end
          left = left - age * drain
          if left < 0 then left = 0 end
          if is_leaky then
            -- Only the last place can be released, and it was the last if nothing has come in since.
            if amount == left then after = amount + charge end
          elseif left < -charge then
            -- Units that have come back by themselves are not given back again.
            after = amount - left
          else
            after = amount + charge
          end
          if after < 0 then after = 0 end
        end
      end
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, after
      whole[2 * count - 1], whole[2 * count] = weight, drain
      if drain ~= 1 or short == 0 or after > NARROW_MAX then is_wide = true end
      if after / drain > longest then longest = after / drain end

--- left
      if drain > 0 then
        left = floor((limit - readings[width]) / weight)

--- carry
      if kind == BUCKET then
        if b < EXACT and a > 0 and c > 0 then
          b = b - elapsed * c
          life = b / c
        end
