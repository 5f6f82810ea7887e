  elseif is_later then
    -- Written by a clock that was ahead. The value is moved to now, because otherwise an exhausted quota would not
    -- refill until the clock catches up.
    redis.pcall('SETRANGE', partition, 1, pack('<I7', now))
  end
end
local reply = pack('<' .. string.rep('d', width), unpack(readings, 1, width))
return sub(charges, -8, -5) .. reply .. sub(charges, -4)
