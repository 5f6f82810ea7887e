--- numbers
local SLIDING_LOG = -2

--- newest
  -- An entry of a log: its number, the units of all entries up to it, and its own units.
  local ENTRY, ENTRY_SIZE, MAX_RENUMBERED, GIVEN_BACK = '>I6I7I4', 17, 1000, '\0\0\0\0'
  -- The newest entry of each log, and the final usage of the last log.
  local newest_entries, logged
  if #KEYS > parts then
    local log_index = key_index
    for charge_position = first_charge, last_charge, CHARGE do
      local _, _, _, _, _, _, drain = read('<I4I3ddddd', charges, charge_position)
      if drain == SLIDING_LOG or drain == CONCURRENCY then log_index = log_index + 1 end
      if drain == SLIDING_LOG then
        local newest = redis.pcall('ZRANGE', KEYS[log_index], -1, -1, 'WITHSCORES')
        if newest.err or (newest[1] and #newest[1] ~= ENTRY_SIZE) then
          redis.call('DEL', KEYS[log_index])
          newest = {}
        end
        if newest[1] and sub(newest[1], -4) == GIVEN_BACK then
          -- A refunded entry, which is kept for its number until the next charge. The time is read from the entry
          -- before it.
          newest[2] = redis.call('ZRANGE', KEYS[log_index], -2, -2, 'WITHSCORES')[2] or 0
          newest[3] = newest[1]
        end
        newest_entries = newest_entries or {}
        newest_entries[log_index] = newest
        local moment = newest[1] and tonumber(newest[2])
        if moment and moment > now and moment - clock <= MAX_CLOCK_STEP and floor(moment) == moment then now = moment end
      end
    end
  end

--- charge
    elseif drain == SLIDING_LOG then
      key_index = key_index + 1
      local key = KEYS[key_index]
      local newest = newest_entries[key_index]
      local moment = now
      if newest[1] and tonumber(newest[2]) > now then
        -- Entries written by a clock that was ahead are moved to now. If there are too many for one call, the oldest
        -- entries are moved first, and the others stay after the new entry.
        local later = {}
        if movable > 0 then
          later = redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', now), '+inf', 'LIMIT', 0, movable)
        end
        local moved = {}
        for index, entry in ipairs(later) do moved[2 * index - 1], moved[2 * index] = now, entry end
        if later[1] then redis.call('ZADD', key, unpack(moved)) end
        movable = movable - #later
        if later[#later] ~= newest[1] then moment = tonumber(newest[2]) end
      end
      local amount, wait, oldest_leaves, newest_leaves, sequence, total, before = 0, 0, 0, 0, 0, 0, 0
      local oldest_number, oldest_total = 0, 0
      local oldest = redis.call(
        'ZRANGEBYSCORE', key, string.format('(%.0f', now - weight), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if oldest[1] and #oldest[1] == ENTRY_SIZE then
        local oldest_cost
        oldest_number, oldest_total, oldest_cost = read(ENTRY, oldest[1])
        sequence, total = read(ENTRY, newest[1])
        before = oldest_total - oldest_cost
        amount = total - before
      end
      if amount > 0 then
        oldest_leaves = tonumber(oldest[2]) + weight - now
        newest_leaves = tonumber(newest[2]) + weight - now
        if oldest_leaves > weight then oldest_leaves = weight end
        if newest_leaves > weight then newest_leaves = weight end
      else
        -- If nothing in the window is used, entry numbers start at a value that no log has used: the last five bytes of
        -- the call number.
        sequence = read('<I5', charges, #charges - 4)
        -- A log that is too long to be cleared in one call continues its numbers.
        if newest[1] and redis.call('ZCARD', key) > MOST_CLEARED then sequence, total = read(ENTRY, newest[1]) end
      end
      logged = amount
      if not receipt then
        -- The units that must leave until the charge passes, or, if it uses the overage, until a unit of the quota
        -- remains.
        local over = amount + charge - limit
        if over > 0 then
          fits = fits and is_shadow
          -- If the charge never fits, the wait is for one unit.
          if charge > limit then over = amount + 1 - limit end
          charge = 0
        else
          over = amount + charge - bound
          if over > 0 then over = over + 1 end
        end
        if over > amount then
          wait = weight
        elseif over > 0 then
          -- Finds the first entry after whose expiry enough units are available. Positions are counted from the end;
          -- the newest entry has position -1.
          local needed = before + over
          local low, high, leaving, middle = oldest_number - sequence - 1, -1, tonumber(newest[2]), nil
          if oldest_total >= needed then low, leaving = high, tonumber(oldest[2]) end
          while low < high do
            if middle then
              middle = floor((low + high) / 2)
            else
              -- If all entries have the same number of units, the first step finds the entry.
              middle = -1 - floor((total - needed) * (sequence - oldest_number + 1) / amount)
            end
            -- The entry at `middle`, and the previous entry.
            local its = redis.call('ZRANGE', key, middle - 1, middle, 'WITHSCORES')
            local _, its_total = 0, 0
            if its[1] then _, its_total = read(ENTRY, its[#its - 1]) end
            local _, previous_total = 0, 0
            if its[3] then _, previous_total = read(ENTRY, its[1]) end
            if previous_total >= needed then
              high, leaving = middle - 1, tonumber(its[2])
            elseif its_total >= needed then
              low, high, leaving = middle, middle, tonumber(its[4] or its[2])
            else
              low = middle + 1
            end
          end
          wait = leaving + weight - now
          if wait > weight then wait = weight end
        end
      elseif charge >= 0 then
        if amount + charge > bound then charge = bound - amount end
        if charge < 0 then charge = 0 end
      elseif age < limit then
        local mark = read('<d', receipt, (charge_position - 1) / CHARGE * 8 + 17)
        -- Refunds the entry with the number `mark` at the time of the charge. If `mark` is 0, refunds entries up to
        -- this time, the newest first.
        local from, entries = redis.call('ZCARD', key) - MAX_RENUMBERED, {}
        if from < 0 then from = 0 end
        if mark > 0 then
          local earlier = redis.call('ZCOUNT', key, '-inf', string.format('(%.0f', charged_at))
          if from < earlier then from = earlier end
        end
        local count = redis.call('ZCOUNT', key, '-inf', charged_at)
        if count > from then entries = redis.call('ZRANGE', key, from, count - 1) end
        local refund, first, refunds = -charge, nil, {}
        for index = #entries, 1, -1 do
          local number, _, cost = read(ENTRY, entries[index])
          if refund > 0 and cost > 0 and (mark == 0 or number == mark) then
            local part = cost
            if part > refund then part = refund end
            first, refund, refunds[number] = entries[index], refund - part, part
            if mark > 0 then refund = 0 end
          end
        end
        if first then
          local rank, refunded, renumbered, replaced = redis.call('ZRANK', key, first), 0, {}, {}
          local later = redis.call('ZRANGE', key, rank, -1, 'WITHSCORES')
          for index = 1, #later, 2 do
            local its_number, its_total, its_cost = read(ENTRY, later[index])
            local part = refunds[its_number] or 0
            refunded, its_cost = refunded + part, its_cost - part
            if tonumber(later[index + 1]) > now - weight then logged = logged - part end
            if its_cost > 0 or (index + 1 == #later and rank + #renumbered > 0) then
              renumbered[#renumbered + 1] = later[index + 1]
              renumbered[#renumbered + 1] = pack(ENTRY, its_number, its_total - refunded, its_cost)
            end
            replaced[#replaced + 1] = later[index]
          end
          -- Entries are added first, because Redis deletes an empty key together with its expiry.
          if renumbered[1] then redis.call('ZADD', key, unpack(renumbered)) end
          redis.call('ZREM', key, unpack(replaced))
        end
      end
      readings[width + 1], readings[width + 2], readings[width + 3] = amount, wait, oldest_leaves
      readings[width + 4], readings[width + 5] = newest_leaves, sequence
      width = width + 5
      if charge > 0 then
        logged = amount + charge
        logs = logs or {}
        logs[#logs + 1] = { key, weight, pack(ENTRY, sequence + 1, total + charge, charge), newest[3], moment }
      end

--- left
      elseif drain == SLIDING_LOG then
        left = limit - readings[width - 4]

--- write
    if logs then
      for _, log in ipairs(logs) do
        local over = redis.call('ZCOUNT', log[1], '-inf', now - log[2])
        redis.call('ZADD', log[1], log[5], log[3])
        if over > MOST_CLEARED then over = MOST_CLEARED end
        if over > 0 then redis.call('ZREMRANGEBYRANK', log[1], 0, over - 1) end
        if log[4] then redis.call('ZREM', log[1], log[4]) end
        redis.call('PEXPIRE', log[1], ceil((log[2] + ahead) / 1000) + extra_life)
      end
    end
