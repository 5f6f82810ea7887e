  elseif is_later then
    -- The value was written by a clock that was ahead. Its time is set to now, because otherwise an exhausted quota
    -- would not refill until the clock catches up.
    redis.pcall('SETRANGE', partition, 1, pack('<I7', now))
  end
end
if rates then
  for index = 1, #rates do readings[width + index] = rates[index] end
  width = width + #rates
end
local reply = pack('<' .. string.rep('d', width), unpack(readings, 1, width))
return sub(charges, -8, -5) .. reply .. sub(charges, -4)
