  -- A partition without usage starts a new lifetime, so that refunds of older charges do not affect later charges.
  if not is_used then birth = read('<I3', charges, #charges - 7) end
  readings[birth_place] = birth
  if is_newer then
    -- Because -1 is not a valid birth, the store returns an error.
    readings[birth_place] = -1
    if not receipt then fits = false end
  end

  -- A failed write of a rejected plan does not change the reply.
  local write = redis.call
  if is_moving then write = redis.pcall end
  if is_trial then
    if is_later then redis.pcall('SETRANGE', partition, 1, pack('<I7', now)) end
  elseif not is_newer and ((fits and is_charged) or is_moving) then
    if longest > 0 then
      local packed
      if not kinds and not is_wide then
        levels[3] = birth
        packed = pack('<BI7I3' .. string.rep('I4I3I4', count), unpack(levels, 1, 3 * count + 3))
      else
        local is_narrow = true
        for index = 1, count do
          local drain = whole[2 * index]
          if drain > NARROW_MAX or (not kinds and drain ~= 1) then is_narrow = false end
          if levels[3 * index + 3] > NARROW_MAX or levels[3 * index + 2] == 0 then is_narrow = false end
        end
        -- In mixed layouts, the drain has its own field, so any small number is possible.
        local level, fields, own_layout = 'I4I7I7I7', {}, WIDE
        if is_narrow and kinds then level = 'I4I3I4I4' elseif is_narrow then level = 'I4I3I4' end
        if is_narrow then own_layout = NARROW end
        if kinds then level, own_layout = level .. 'B', own_layout + 2 end
        for index = 1, count do
          fields[#fields + 1] = levels[3 * index + 1]
          fields[#fields + 1] = whole[2 * index - 1]
          if is_narrow then fields[#fields] = levels[3 * index + 2] end
          fields[#fields + 1] = levels[3 * index + 3]
          if kinds or not is_narrow then fields[#fields + 1] = whole[2 * index] end
          if kinds then fields[#fields + 1] = kinds[index] or BUCKET end
        end
        level = string.rep(level, count)
        packed = pack('<BI7I3' .. level, own_layout, now, birth, unpack(fields))
      end
      local life = ceil((longest + ahead) / 1000)
      if kinds then
        -- The windows of all callers end at the same time, and expiring a million keys at once blocks the server. A
        -- random delay spreads the expiry, but at most doubles the lifetime of a key.
        local jitter = life
        if jitter > EXPIRY_JITTER then jitter = EXPIRY_JITTER end
        life = life + floor(jitter * read('<I3', charges, #charges - 2) / 16777216)
      end
      write('SET', partition, packed, 'PX', life + extra_life)
    elseif last > 0 then
      write('DEL', partition)
    end
--- write
