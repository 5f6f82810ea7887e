--- charge
    elseif drain == FIXED_WINDOW then
      local start = floor(now / weight) * weight
      local amount = 0
      if kind == WINDOW and floor(at / weight) * weight == start then
        amount = b
        if amount > MOST_COUNT then amount = MOST_COUNT end
        if amount > 0 then is_used = true end
      end
      if amount == 0 or not magnitude then magnitude = 0 end
      width = width + 1
      readings[width] = amount
      local after, is_over = amount + charge, false
      if not receipt then
        if after > limit then
          if is_shadow then after, is_over = amount, true else fits = false end
        end
      elseif charge >= 0 then
        local most = bound
        if magnitude > 0 and ldexp(1, magnitude) > most then most = ldexp(1, magnitude) end
        if after > most then after = most end
        if after < amount then after = amount end
      elseif age >= limit or charged_at < start or charged_birth ~= birth then
        after = amount
      elseif after < 0 then
        after = 0
      end
      local quota = limit
      if receipt then quota = bound / 2 end
      if magnitude == 0 or not (receipt or is_moving or is_over) then magnitude = select(2, frexp(quota)) end
      spent = after
      kinds = kinds or {}
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, after
      whole[2 * count - 1], whole[2 * count], kinds[count] = weight / 1000000, 0, WINDOW + MAGNITUDE * magnitude
      if after > 0 and start + weight - now > longest then longest = start + weight - now end

--- left
      elseif drain == FIXED_WINDOW then
        left = limit - readings[width]

--- carry
      elseif a > 0 then
        local window = a * 1000000
        local start = floor(now / window) * window
        if floor(at / window) * window ~= start then b, c = 0, 0 end
        if b > 0 or c > 0 then life = start + window - now end
      end
