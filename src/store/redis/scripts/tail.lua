  elseif is_later then
    -- Written by a clock that stood later: it belongs to now, or a caller without quota would stay so until that moment.
    redis.call('SETRANGE', partition, 1, pack('<I7', now))
  end
end
if not part_sizes or not fits or are_independent then told = width end
--- answer
local reply = pack('<' .. string.rep('d', told), unpack(readings, 1, told))
return sub(charges, -8, -5) .. reply .. sub(charges, -4)
