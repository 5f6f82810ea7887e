  elseif is_later then
    -- Written by a clock that stood later: it belongs to now, or a caller without quota would stay so until that moment.
    redis.pcall('SETRANGE', partition, 1, pack('<I7', now))
  end
end
local reply = pack('<' .. string.rep('d', width), unpack(readings, 1, width))
return sub(charges, -8, -5) .. reply .. sub(charges, -4)
