--- numbers
local CONCURRENCY = -3

--- charge
    elseif drain == CONCURRENCY then
      -- The holders of slots, ordered by the end of their leases.
      key_index = key_index + 1
      local key = KEYS[key_index]
      local held = redis.pcall('ZCOUNT', key, string.format('(%.0f', clock), '+inf')
      if type(held) ~= 'number' then
        redis.call('DEL', key)
        held = 0
      end
      width = width + 1
      readings[width] = held
      if receipt then
        if charge < 0 then redis.call('ZREM', key, lease) end
      else
        if held + charge > limit then
          if is_shadow then charge = 0 else fits = false end
        end
        if charge > 0 then
          slots = slots or {}
          slots[#slots + 1] = { key, weight }
        end
      end

--- write
    -- In microseconds. No store grants longer leases.
    local LONGEST_LEASE = 86400000000
    if slots then
      for _, slot in ipairs(slots) do
        local over = redis.call('ZCOUNT', slot[1], '-inf', clock)
        redis.call('ZADD', slot[1], clock + slot[2], lease)
        if over > MOST_CLEARED then over = MOST_CLEARED end
        if over > 0 then redis.call('ZREMRANGEBYRANK', slot[1], 0, over - 1) end
        -- Leases of other instances may last longer than this one.
        local life = tonumber(redis.call('ZRANGE', slot[1], -1, -1, 'WITHSCORES')[2]) - clock
        if life > LONGEST_LEASE then life = LONGEST_LEASE end
        redis.call('PEXPIRE', slot[1], ceil(life / 1000) + extra_life)
      end
    end
