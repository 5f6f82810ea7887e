--- borders
-- Calendar windows. ARGV[7] contains six boundaries per calendar, in 48 bytes: the boundaries of the window at the time
-- estimated by the instance, of the two adjacent windows, and one more on each side. If the server's time, or the
-- frozen time of a partition, is in none of these three windows, nothing is done, and the reply only contains the
-- server's time.
local borders = ARGV[7]
if borders then
  if part_sizes == '' then part_sizes, parts = nil, 1 end
  if plans == '' then plans = nil end
  for position = 1, #borders, 48 do
    local _, first, _, _, last = read('<ddddd', borders, position)
    if clock < first or clock + 5000000 >= last then
      return sub(charges, -8, -5) .. pack('<d', clock) .. sub(charges, -4)
    end
  end
end

--- charge
    elseif drain == CALENDAR then
      -- The weight is the position of the boundaries. `start` and `finish` are the boundaries of the current window.
      local before, start, finish, after, fifth, sixth = read('<dddddd', borders, weight)
      if now >= after then
        before, start, finish, after = finish, after, fifth, sixth
      elseif now >= finish then
        before, start, finish, after = start, finish, after, fifth
      end
      local own, amount = start, 0
      if kind == DATED then
        -- Other instances may have different time-zone data: a window that starts nearer to `start` than to the
        -- previous boundary is treated as this window.
        local its_start, is_held = c * 1000000, false
        if a == 0 then
          is_held = its_start >= start
        elseif its_start > at then
          -- Written by a clock that was ahead.
          is_held = at >= start
        else
          is_held = its_start >= start or start - its_start < its_start - before
        end
        if a > 0 and its_start >= start and its_start <= now then own = its_start end
        if is_held then
          amount = b
          if amount > MOST_COUNT then amount = MOST_COUNT end
          if amount > 0 then is_used = true end
        end
      end
      width = width + 1
      readings[width] = amount
      local used = amount + charge
      if not receipt then
        if used > limit then
          if is_shadow then used = amount else fits = false end
        end
      elseif charge >= 0 then
        -- The charge is too late: its window has ended, by the partition's time and by the server's clock.
        if charged_at < start and start <= clock then used = amount end
        if used > bound then used = bound end
        if used < amount then used = amount end
      elseif age >= limit or charged_at < start or charged_at < own or charged_birth ~= birth then
        used = amount
      elseif used < 0 then
        used = 0
      end
      if finish - own < own - start then finish = after end
      -- The shortened length. All lengths can be represented, because clocks change by whole minutes.
      local length = (finish - own) / 1000000
      local fives = length / 25
      if fives == floor(fives) then short = fives * 16 + 2 else short = 0 end
      spent = used
      kinds = kinds or {}
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, used
      whole[2 * count - 1], whole[2 * count], kinds[count] = length, own / 1000000, DATED
      if used > 0 and finish - now > longest then longest = finish - now end

--- left
      elseif drain == CALENDAR then
        left = limit - readings[width]

--- carry
      elseif kind == DATED then
        -- Written by a clock that was ahead. The count belongs to the window that contains the time of the value, whose
        -- length is unknown.
        if a > 0 and c * 1000000 > at then a, short, c = 0, 0, floor(at / 1000000) end
        if b > 0 then
          if a > 0 then life = (c + a) * 1000000 - now else life = c * 1000000 + 5356800000000 - now end
        end
