--- numbers
local FIXED_WINDOW, WINDOW = -1, 1

--- charge
    elseif drain == FIXED_WINDOW then
      local start = floor(now / weight) * weight
      local amount = 0
      if kind == WINDOW and floor(at / weight) * weight == start then
        amount = b
        if amount > MOST_COUNT then amount = MOST_COUNT end
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
        if after < amount then after = amount end
      elseif age >= limit or charged_at < start or charged_birth ~= birth then
        after = amount
      elseif after < 0 then
        after = 0
      end
      spent = after
      kinds = kinds or {}
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, after
      whole[2 * count - 1], whole[2 * count], kinds[count] = weight / 1000000, 0, WINDOW
      if after > 0 and start + weight - now > longest then longest = start + weight - now end

--- left
      elseif drain == FIXED_WINDOW then
        left = limit - readings[width]

--- carry others
      elseif a > 0 then
        local window = a * 1000000.0
        local start = floor(now / window) * window
        if floor(at / window) * window ~= start then b, c = 0, 0 end
        if b > 0 or c > 0 then life = start + window - now end
