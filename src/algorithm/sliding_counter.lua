--- numbers
local SLIDING_COUNTER, COUNTER = -4, 2

--- charge
    elseif drain == SLIDING_COUNTER then
      local start = floor(now / weight) * weight
      local previous, current = 0, 0
      if kind == COUNTER then
        local its_start = floor(at / weight) * weight
        if its_start == start then
          previous, current = c, b
        elseif its_start + weight == start then
          previous = b
        end
        if previous > MOST_COUNT then previous = MOST_COUNT end
        if current > MOST_COUNT then current = MOST_COUNT end
        if previous > 0 or current > 0 then is_used = true end
      end
      readings[width + 1], readings[width + 2] = previous, current
      width = width + 2
      local is_over = false
      if not receipt then
        local overlap, room = weight - (now - start), limit - current - charge
@over
        if is_over then
          if is_shadow then charge = 0 else fits = false end
        end
        current = current + charge
      elseif charge >= 0 then
        local before = current
        current = current + charge
        if current > bound then current = bound end
        if current < before then current = before end
      elseif age < limit and charged_birth == birth then
        if charged_at >= start then current = current + charge else previous = previous + charge end
        if current < 0 then current = 0 end
        if previous < 0 then previous = 0 end
      end
      spent = current
      kinds = kinds or {}
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, current
      whole[2 * count - 1], whole[2 * count], kinds[count] = weight / 1000000, previous, COUNTER
      local life = 0
      if current > 0 then life = start + 2 * weight - now elseif previous > 0 then life = start + weight - now end
      if life > longest then longest = life end

--- left
      elseif drain == SLIDING_COUNTER then
        -- Up to two units too high, and never too low. If the units do not fit, one unit less is tried.
        local overlap = weight - (now - floor(now / weight) * weight)
        left = floor(limit - readings[width] - readings[width - 1] * overlap / weight) + 1

--- carry
      elseif kind == COUNTER and a > 0 then
        local window = a * 1000000.0
        local start, its_start = floor(now / window) * window, floor(at / window) * window
        if its_start + window == start then b, c = 0, b elseif its_start ~= start then b, c = 0, 0 end
        if b > 0 then
          life = start + 2 * window - now
        elseif c > 0 then
          life = start + window - now
        end
--- over
        local used, most = previous * overlap, room * weight
        is_over = used > most
        if used >= EXACT and most >= EXACT then
          -- Splits a number into halves, to multiply beyond 2^53.
          local HALF = 67108864
          -- The difference of the products in halves, from the last digits to the first.
          local a, b, c, d = floor(previous / HALF), floor(overlap / HALF), floor(room / HALF), floor(weight / HALF)
          local p, o, r, w = previous - a * HALF, overlap - b * HALF, room - c * HALF, weight - d * HALF
          local low, middle, high = p * o - r * w, a * o + p * b - (c * w + r * d), a * b - c * d
          local carried = floor(low / HALF)
          low, middle = low - carried * HALF, middle + carried
          carried = floor(middle / HALF)
          middle, high = middle - carried * HALF, high + carried
          is_over = high > 0 or (high == 0 and (middle > 0 or low > 0))
        end
