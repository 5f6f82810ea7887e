--- numbers
local CALENDAR, DATED = -5, 3

--- borders
-- Calendar windows. ARGV[7] contains five boundaries per calendar, in 40 bytes: the boundaries of the window at the time
-- estimated by the instance, of the two adjacent windows, and one more. If the server's time, or the frozen time of a
-- partition, is in none of these three windows, nothing is done, and the reply only contains the server's time.
local borders = ARGV[7]
if borders then
  if part_sizes == '' then part_sizes, parts = nil, 1 end
  if plans == '' then plans = nil end
  for position = 1, #borders, 40 do
    local first, _, _, last = read('<dddd', borders, position)
    if clock < first or clock + 5000000 >= last then
      return sub(charges, -8, -5) .. pack('<d', clock) .. sub(charges, -4)
    end
  end
end

--- charge
    elseif drain == CALENDAR then
      -- The weight is the position of the boundaries. `start` and `finish` are the boundaries of the current window.
      local start, finish, after, fourth, fifth = read('<ddddd', borders, weight)
      if now >= after then
        start, finish, after = after, fourth, fifth
      elseif now >= finish then
        start, finish, after = finish, after, fourth
      end
      local SAME, GRAIN, LONGEST = 43200000000, 25000000, 5356800000000
      -- The count, its beginning, and the end of the window in which it began.
      local units, began, ends, life = 0, 0, 0, 0
      if kind == DATED then
        if is_short then
          local fives
          a, fives = floor(a / 16), a - floor(a / 16) * 16
          for _ = 1, fives do a = a * 5 end
        end
        units, began = b, c * 1000000.0
        if a > 0 and a * 1000000.0 <= LONGEST then ends = began + a * 1000000.0 end
        -- Written by a clock that was ahead.
        if began > at then began, ends = floor(at / 1000000) * 1000000.0, 0 end
        if ends > 0 then life = ends - now else life = began + LONGEST - now end
        if life <= 0 then units = 0 end
        if units > 0 then is_used = true end
      end
      -- A count that is over in the windows of this policy may continue in those of other policies.
      local amount, its_end = 0, finish
      local is_same = ends - finish < SAME and finish - ends < SAME
      if units > 0 and (began >= start or is_same) then
        amount = units
        if amount > MOST_COUNT then amount = MOST_COUNT end
        if ends - after < SAME and after - ends < SAME then its_end = after end
        if ends > 0 and ends < its_end then its_end = ends end
      end
      readings[width + 1], readings[width + 2] = its_end, amount
      width = width + 2
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
      elseif age >= limit or charged_at < start or charged_birth ~= birth or (charged_at < began and not is_same) then
        used = amount
      elseif used < 0 then
        used = 0
      end
      if used > amount and (amount == 0 or ends == 0) then
        -- A new count, or one whose end was unknown.
        if amount == 0 then began = now end
        ends, life = finish, finish - now
        began = ends - ceil((ends - began) / GRAIN) * GRAIN
        if began < 0 then began = 0 end
      end
      if used ~= amount then units = used end
      local length = 0
      if ends > 0 then length = (ends - began) / 1000000 end
      local fives = length / 25
      if fives == floor(fives) and fives < 1048576 then short = fives * 16 + 2 else short = 0 end
      spent = used
      kinds = kinds or {}
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, units
      whole[2 * count - 1], whole[2 * count], kinds[count] = length, began / 1000000, DATED
      if units > 0 and life > longest then longest = life end

--- left
      elseif drain == CALENDAR then
        left = limit - readings[width]

--- carry
      elseif kind == DATED then
        -- Written by a clock that was ahead. The count begins at the time of the value, and its end is unknown.
        if c * 1000000.0 > at then a, short, c = 0, 0, floor(at / 1000000) end
        if b > 0 then
          if a > 0 then life = (c + a) * 1000000.0 - now else life = c * 1000000.0 + 5356800000000 - now end
        end
