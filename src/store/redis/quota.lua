-- One decision, or the settlement of one for one partition: all policies, all or nothing.
--
-- KEYS      the partition, and a key for each log and each limit of concurrent requests, in the policies' order; then the
--           same for each further partition
-- ARGV[1]   for each policy: its id, its weight in three bytes, weight, drain, limit, bound, and the charge; the limit is
--           negative for a shadow, which rejects nothing and takes no charge that is above it. After them the eight
--           bytes of the call's number, which is random: what begins with this call takes its own number from it
-- ARGV[2]   who holds the slots that are taken or given back; empty if none are
-- ARGV[3]   to settle: the moment of the charge, the birth of what was charged, and for each policy what a refund has to
--           know; empty to decide
-- ARGV[4]   the time in microseconds; tests only, else the server's. What is kept then stays for an hour longer than it
--           is needed, because the server's own time goes on while that of a test stands still
-- ARGV[5]   a byte for each partition, the number of its policies, if there are several partitions. They are gone
--           through twice then: once to find out whether all charges fit, and once to make them
-- ARGV[6]   given if the partitions have nothing to do with each other: each is decided for itself, after those before it
--
-- To settle, a charge is the difference to what was charged before, nothing is rejected, and the limit is the age in
-- microseconds from which a charge is not taken back any more.
--
-- Returns as doubles the server's time, and of each partition by how much its own time is ahead of that, its birth, and
-- what each policy had used before: the reading of src/algorithm. The reply begins with the first half of the call's
-- number and ends with the second half: a reply that has lost bytes, or is another call's, is found out.
--
-- The time of a partition stands still while the server's is behind it by a few seconds at most, so that a step of the
-- clock gives no quota twice. What a clock has written that is farther ahead belongs to now.
--
-- A value is a byte for its layout, the moment to which its levels belong, its birth, and the levels: policy id, weight of
-- a unit, used weight, drain per microsecond. The birth is a number of those who have begun it: a charge that was made
-- before is not given back to it. The narrow layout has used weights below 2^32, leaves out a drain, which is 1, and
-- writes a weight as m * 16 + e, which stands for m * 5^e. Where not all levels are buckets, mixed layouts have a byte
-- more, that says what a level is. The level of a window has in place of weight, used and drain: its length in seconds,
-- the count of this window, the count of the last one.
--
-- Older instances write layouts without a birth, and in the narrow ones weights in four bytes, and do not read others. A
-- value that has one keeps it until it is gone.
--
-- The arithmetic is that of src/algorithm: integers below 2^53, in the same order. There are no functions here, because
-- making them at each call would take as long as all the rest.
local HEADER, OLD_HEADER, CHARGE, NUMBER_SIZE, LARGEST = 11, 8, 47, 8, 2048
-- A value that has as many, 26 bytes each at most, is still read.
local MOST_LEVELS = math.floor((LARGEST - HEADER) / 26)
-- In microseconds; no store gives longer ones.
local LONGEST_LEASE = 86400000000
local NARROW, WIDE, NARROW_MIXED, WIDE_MIXED = 1, 2, 3, 4
-- What a layout has more than the older one with the same levels.
local WITH_BIRTH = 4
-- For so many microseconds at most, a partition's time stands still.
local STANDSTILL = 5000000
-- What a drain that is no drain stands for. Below these it is a sliding counter.
local FIXED_WINDOW, SLIDING_LOG, CONCURRENCY = -1, -2, -3
-- Half the digits of a number that is to be multiplied beyond 2^53.
local HALF = 67108864
-- What a level is.
local BUCKET, WINDOW, COUNTER = 0, 1, 2
local EXACT, NARROW_MAX = 9007199254740992, 4294967295
-- An entry of a log: its number, the units of all entries up to it, its own units.
local ENTRY, ENTRY_SIZE, MAX_RENUMBERED = '>I6I7I4', 17, 1000
local read, floor, ceil = struct.unpack, math.floor, math.ceil

local charges, lease, receipt = ARGV[1], ARGV[2], ARGV[3]
local clock, extra_life = tonumber(ARGV[4]), 3600000
if not clock then
  extra_life = 0
  local time = redis.call('TIME')
  clock = time[1] * 1000000 + time[2]
end
if receipt == '' then receipt = nil end
local charged_at, charged_birth
if receipt then charged_at, charged_birth = read('<dd', receipt) end

-- `readings` is what is returned.
local part_sizes, readings, width = ARGV[5], { clock, nil, nil, nil, nil, nil }, 1
local steps, parts, are_independent = 1, 1, false
if part_sizes then
  parts, steps = #part_sizes, 2 * #part_sizes
  if ARGV[6] then steps, are_independent = parts, true end
end
local fits, is_charged, key_index, told = true, false, 0, 1
local first_charge, last_charge = 1, #charges - NUMBER_SIZE
for step = 1, steps do
  local is_trial = step < steps and step <= parts and not are_independent
  if part_sizes then
    if step == 1 then
      last_charge = 0
    elseif are_independent then
      fits, is_charged = true, false
    elseif step == parts + 1 then
      if not fits then break end
      told, key_index, last_charge = width, 0, 0
    end
    first_charge = last_charge + 1
    last_charge = last_charge + CHARGE * string.byte(part_sizes, (step - 1) % parts + 1)
  end
  key_index = key_index + 1
  local partition = KEYS[key_index]

  -- A key of another type, or a value that was not written here, is as good as none.
  local value = redis.pcall('GET', partition)
  local layout, format, size, header, last = NARROW, '<I4I3I4', 11, HEADER, 0
  local now, at, birth, is_old, is_later = clock, clock, nil, false, false
  if type(value) == 'string' and #value > HEADER and #value <= LARGEST then
    local its_layout, its_moment, its_birth = read('<BI7I3', value)
    if its_layout <= WITH_BIRTH then
      its_layout, its_birth, is_old, header = its_layout + WITH_BIRTH, 0, true, OLD_HEADER
      if its_layout == NARROW + WITH_BIRTH then format, size = '<I4I4I4', 12 end
    end
    its_layout = its_layout - WITH_BIRTH
    if its_layout == WIDE then layout, format, size = WIDE, '<I4I7I7I7', 25
    elseif its_layout == NARROW_MIXED and is_old then layout, format, size = NARROW_MIXED, '<I4I4I4I4B', 17
    elseif its_layout == NARROW_MIXED then layout, format, size = NARROW_MIXED, '<I4I3I4I4B', 16
    elseif its_layout == WIDE_MIXED then layout, format, size = WIDE_MIXED, '<I4I7I7I7B', 26 end
    if its_layout == layout and (#value - header) % size == 0 then
      last, birth, at = #value, its_birth, its_moment
      if at > clock then
        if at - clock <= STANDSTILL then now = at else is_later = true end
      end
    else
      is_old, header = false, HEADER
    end
  end
  -- The same for the newest entry of each log.
  local newest_entries
  if #KEYS > parts then
    local log_index = key_index
    for charge_position = first_charge, last_charge, CHARGE do
      local _, _, _, drain = read('<I4I3dd', charges, charge_position)
      if drain == SLIDING_LOG or drain == CONCURRENCY then log_index = log_index + 1 end
      if drain == SLIDING_LOG then
        local newest = redis.pcall('ZRANGE', KEYS[log_index], -1, -1, 'WITHSCORES')
        if newest.err or (newest[1] and #newest[1] ~= ENTRY_SIZE) then
          redis.call('DEL', KEYS[log_index])
          newest = {}
        end
        newest_entries = newest_entries or {}
        newest_entries[log_index] = newest
        local moment = newest[1] and tonumber(newest[2])
        if moment and moment > now and moment - clock <= STANDSTILL and floor(moment) == moment then now = moment end
      end
    end
  end
  if is_later then at = now end
  local elapsed, age, ahead = now - at, 0, now - clock
  if receipt and now > charged_at then age = now - charged_at end
  readings[width + 1] = ahead
  width = width + 2
  local birth_place = width

  -- `levels` is what the value holds after the charges, if all of them fit, and `whole` the weight and the drain of each,
  -- of which the narrow layout has the one in short and not the other. There are places for three buckets from the start,
  -- because a table that grows is dear.
  local levels = { NARROW + WITH_BIRTH, now, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
  local whole, count, is_wide = { nil, nil, nil, nil, nil, nil }, 0, is_old
  -- Tables for what is not a bucket are made when they are needed.
  local kinds, logs, slots
  -- Whether anything is used of what the value holds.
  local known, longest, is_used = 0, 0, false
  local is_short = not is_old and (layout == NARROW or layout == NARROW_MIXED)
  for charge_position = first_charge, last_charge, CHARGE do
    local id, short, weight, drain, limit, bound, charge = read('<I4I3ddddd', charges, charge_position)
    if charge ~= 0 then is_charged = true end
    local is_shadow = limit < 0
    if is_shadow then limit = -limit end

    -- Most often a level stands where the last writer, with the same policies, has put it.
    local found, a, b, c, kind
    if drain > SLIDING_LOG or drain < CONCURRENCY then
      local position = header + 1 + size * count
      if position < last then found, a, b, c, kind = read(format, value, position) end
      if found ~= id then
        for other = header + 1, last, size do
          found, a, b, c, kind = read(format, value, other)
          if found == id then break end
        end
      end
      if found ~= id then
        kind = nil
      else
        known = known + 1
        if layout <= WIDE then kind = BUCKET end
        if layout == NARROW then c = 1 end
      end
      count = count + 1
    end

    if drain > 0 then
      -- Token bucket and leaky bucket.
      local amount = 0
      if kind == BUCKET then
        amount = b - elapsed * c
        if amount < 0 or a == 0 or c == 0 or b >= EXACT then amount = 0 end
        if is_short then
          if a == short then
            a = weight
          else
            local fives
            a, fives = floor(a / 16), a - floor(a / 16) * 16
            for _ = 1, fives do a = a * 5 end
            if a == 0 then amount = 0 end
          end
        end
        -- The same number of units in another weight.
        if a ~= weight and amount > 0 then
          local units = floor(amount / a)
          local part = amount - units * a
          local product = part * weight
          if product < EXACT then part = ceil(product / a) else part = ceil(part / a * weight) end
          amount = units * weight + part
        end
        if amount > bound then amount = bound end
        if amount > 0 then is_used = true end
      end
      width = width + 1
      readings[width] = amount
      local after = amount + charge
      if not receipt then
        if after > limit then
          if is_shadow then after = amount else fits = false end
        end
      elseif charge >= 0 then
        if after > bound then after = bound end
      else
        local mark = read('<d', receipt, (charge_position - 1) / CHARGE * 8 + 17)
        after = amount
        if age < limit and charged_birth == birth then
          -- What is left of that to which it was filled, as if nobody had come since.
          local is_leaky, left = mark < 0, mark
          if is_leaky then left = -mark end
          left = left - age * drain
          if left < 0 then left = 0 end
          if is_leaky then
            -- Only the last place can be given up, and it was the last if nothing has come in since.
            if amount == left then after = amount + charge end
          elseif left < -charge then
            -- What has come back by itself is not given back again.
            after = amount - left
          else
            after = amount + charge
          end
          if after < 0 then after = 0 end
        end
      end
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, after
      whole[2 * count - 1], whole[2 * count] = weight, drain
      if drain ~= 1 or short == 0 or after > NARROW_MAX then is_wide = true end
      if after / drain > longest then longest = after / drain end

    elseif drain == FIXED_WINDOW then
      local start = floor(now / weight) * weight
      local amount = 0
      if kind == WINDOW and floor(at / weight) * weight == start then
        amount = b
        if amount > bound then amount = bound end
        if amount > 0 then is_used = true end
      end
      width = width + 1
      readings[width] = amount
      local after = amount + charge
      if not receipt then
        if after > limit then
          if is_shadow then after = amount else fits = false end
        end
      elseif charge >= 0 then
        if after > bound then after = bound end
      elseif age >= limit or charged_at < start or charged_birth ~= birth then
        after = amount
      elseif after < 0 then
        after = 0
      end
      kinds = kinds or {}
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, after
      whole[2 * count - 1], whole[2 * count], kinds[count] = weight / 1000000, 0, WINDOW
      if after > 0 and start + weight - now > longest then longest = start + weight - now end

    elseif drain < CONCURRENCY then
      -- Sliding window counter.
      local start = floor(now / weight) * weight
      local previous, current = 0, 0
      if kind == COUNTER then
        local its_start = floor(at / weight) * weight
        if its_start == start then
          previous, current = c, b
        elseif its_start + weight == start then
          previous = b
        end
        if previous > bound then previous = bound end
        if current > bound then current = bound end
        if previous > 0 or current > 0 then is_used = true end
      end
      readings[width + 1], readings[width + 2] = previous, current
      width = width + 2
      if not receipt then
        local overlap, room = weight - (now - start), limit - current - charge
        local used, most = previous * overlap, room * weight
        local is_over = used > most
        if used >= EXACT and most >= EXACT then
          -- The same in halves: the difference of the products, from its last digits to its first.
          local a, b, c, d = floor(previous / HALF), floor(overlap / HALF), floor(room / HALF), floor(weight / HALF)
          local p, o, r, w = previous - a * HALF, overlap - b * HALF, room - c * HALF, weight - d * HALF
          local low, middle, high = p * o - r * w, a * o + p * b - (c * w + r * d), a * b - c * d
          local carried = floor(low / HALF)
          low, middle = low - carried * HALF, middle + carried
          carried = floor(middle / HALF)
          middle, high = middle - carried * HALF, high + carried
          is_over = high > 0 or (high == 0 and (middle > 0 or low > 0))
        end
        if is_over then
          if is_shadow then charge = 0 else fits = false end
        end
        current = current + charge
      elseif charge >= 0 then
        current = current + charge
        if current > bound then current = bound end
      elseif age < limit and charged_birth == birth then
        if charged_at >= start then current = current + charge else previous = previous + charge end
        if current < 0 then current = 0 end
        if previous < 0 then previous = 0 end
      end
      kinds = kinds or {}
      levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, current
      whole[2 * count - 1], whole[2 * count], kinds[count] = weight / 1000000, previous, COUNTER
      local life = 0
      if current > 0 then life = start + 2 * weight - now elseif previous > 0 then life = start + weight - now end
      if life > longest then longest = life end

    elseif drain == SLIDING_LOG then
      key_index = key_index + 1
      local key = KEYS[key_index]
      local newest = newest_entries[key_index]
      if newest[1] and tonumber(newest[2]) > now then
        -- Entries after a clock that stood later belong to now.
        for _, entry in ipairs(redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', now), '+inf')) do
          redis.call('ZADD', key, now, entry)
        end
      end
      local amount, wait, oldest_leaves, sequence, total, before = 0, 0, 0, nil, 0, 0
      local oldest = redis.call(
        'ZRANGEBYSCORE', key, string.format('(%.0f', now - weight), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      -- Where all that is left is out of the window, numbers begin with one that no log has had: the last five bytes of
      -- the call's.
      if oldest[1] then
        sequence, total = read(ENTRY, newest[1])
      else
        sequence = read('<I5', charges, #charges - 4)
      end
      if oldest[1] and #oldest[1] == ENTRY_SIZE then
        local _, oldest_total, oldest_cost = read(ENTRY, oldest[1])
        before = oldest_total - oldest_cost
        amount, oldest_leaves = total - before, tonumber(oldest[2]) + weight - now
      end
      if not receipt then
        if amount + charge > limit then
          fits = fits and is_shadow
          -- Of a charge that never passes, the wait is that for the next unit.
          local asked = charge
          if charge > limit then asked = 1 end
          if amount + asked > limit then
            -- The first entry by whose leaving enough units are free.
            local low, high = redis.call('ZRANK', key, oldest[1]), redis.call('ZCARD', key) - 1
            local needed = before + amount + asked - limit
            while low < high do
              local middle = floor((low + high) / 2)
              local _, its_total = read(ENTRY, redis.call('ZRANGE', key, middle, middle)[1])
              if its_total >= needed then high = middle else low = middle + 1 end
            end
            wait = tonumber(redis.call('ZRANGE', key, low, low, 'WITHSCORES')[2]) + weight - now
          end
          charge = 0
        end
      elseif charge >= 0 then
        if amount + charge > bound then charge = bound - amount end
      elseif age < limit then
        local mark = read('<d', receipt, (charge_position - 1) / CHARGE * 8 + 17)
        for _, entry in ipairs(redis.call('ZRANGEBYSCORE', key, charged_at, charged_at)) do
          local number, _, cost = read(ENTRY, entry)
          if number == mark then
            local rank = redis.call('ZRANK', key, entry)
            if redis.call('ZCARD', key) - rank <= MAX_RENUMBERED then
              local later = redis.call('ZRANGE', key, rank, -1, 'WITHSCORES')
              local refund = -charge
              if refund > cost then refund = cost end
              for index = 1, #later, 2 do
                local its_number, its_total, its_cost = read(ENTRY, later[index])
                if index == 1 then its_cost = its_cost - refund end
                -- The new one first: a key that is empty for a moment is gone, and its expiry with it.
                if its_cost > 0 then
                  local renumbered = struct.pack(ENTRY, its_number, its_total - refund, its_cost)
                  redis.call('ZADD', key, later[index + 1], renumbered)
                end
                redis.call('ZREM', key, later[index])
              end
            end
            break
          end
        end
      end
      readings[width + 1], readings[width + 2], readings[width + 3] = amount, wait, oldest_leaves
      readings[width + 4] = sequence
      width = width + 4
      if charge > 0 then
        logs = logs or {}
        logs[#logs + 1] = { key, weight, struct.pack(ENTRY, sequence + 1, total + charge, charge) }
      end

    else
      -- Concurrent requests: who holds a slot, by the moment when its lease ends.
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
    end
  end

  -- Levels of policies that only another instance has are brought forward by their own rule, and kept until they are
  -- empty. Those that were charged last come first, and where there are too many, the last ones are left out.
  if header + known * size < last then
    local own = count
    for position = header + 1, last, size do
      local id, a, b, c, kind = read(format, value, position)
      if layout <= WIDE then kind = BUCKET end
      if layout == NARROW then c = 1 end
      local short = a
      if is_short then
        local fives
        a, fives = floor(a / 16), a - floor(a / 16) * 16
        for _ = 1, fives do a = a * 5 end
      else
        local rest, fives = a, 0
        while fives < 15 and rest > 0 and floor(rest / 5) * 5 == rest do rest, fives = rest / 5, fives + 1 end
        if rest < 1048576 then short = rest * 16 + fives else short = 0 end
      end
      local life = 0
      if kind == BUCKET then
        if b < EXACT and a > 0 and c > 0 then
          b = b - elapsed * c
          life = b / c
        end
      elseif a > 0 then
        local window = a * 1000000
        local start, its_start = floor(now / window) * window, floor(at / window) * window
        if its_start ~= start then
          if kind == COUNTER and its_start + window == start then b, c = 0, b else b, c = 0, 0 end
        end
        if kind == COUNTER and b > 0 then
          life = start + 2 * window - now
        elseif b > 0 or c > 0 then
          life = start + window - now
        end
      end
      local is_kept = life > 0 and life < EXACT and count < MOST_LEVELS
      for index = 1, own do is_kept = is_kept and levels[3 * index + 1] ~= id end
      if is_kept then
        count, is_used = count + 1, true
        levels[3 * count + 1], levels[3 * count + 2], levels[3 * count + 3] = id, short, b
        whole[2 * count - 1], whole[2 * count] = a, c
        if kind ~= BUCKET then
          kinds = kinds or {}
          kinds[count] = kind
        elseif c ~= 1 or short == 0 or b > NARROW_MAX then
          is_wide = true
        end
        if life > longest then longest = life end
      end
    end
  end
  -- What is used up by itself ends there: what comes next is not what an older charge has been made to.
  if not is_used then
    if is_old then birth = 0 else birth = read('<I3', charges, #charges - 7) end
  end
  readings[birth_place] = birth

  if is_trial then
    if is_later then redis.call('SETRANGE', partition, 1, struct.pack('<I7', now)) end
  elseif fits and is_charged then
    if longest > 0 then
      local packed
      if not kinds and not is_wide then
        levels[3] = birth
        packed = struct.pack('<BI7I3' .. string.rep('I4I3I4', count), unpack(levels, 1, 3 * count + 3))
      else
        local is_narrow = true
        for index = 1, count do
          local drain = whole[2 * index]
          if drain > NARROW_MAX or (not kinds and drain ~= 1) then is_narrow = false end
          if levels[3 * index + 3] > NARROW_MAX or (not is_old and levels[3 * index + 2] == 0) then is_narrow = false end
          if is_old and whole[2 * index - 1] > NARROW_MAX then is_narrow = false end
        end
        -- A drain has a place of its own in mixed layouts, so that it may be any small number.
        local level, fields, own_layout = 'I4I7I7I7', {}, WIDE
        if is_narrow and kinds then level = 'I4I3I4I4' elseif is_narrow then level = 'I4I3I4' end
        if is_narrow and is_old then level = string.gsub(level, 'I3', 'I4') end
        if is_narrow then own_layout = NARROW end
        if kinds then level, own_layout = level .. 'B', own_layout + 2 end
        for index = 1, count do
          fields[#fields + 1] = levels[3 * index + 1]
          fields[#fields + 1] = whole[2 * index - 1]
          if is_narrow and not is_old then fields[#fields] = levels[3 * index + 2] end
          fields[#fields + 1] = levels[3 * index + 3]
          if kinds or not is_narrow then fields[#fields + 1] = whole[2 * index] end
          if kinds then fields[#fields + 1] = kinds[index] or BUCKET end
        end
        level = string.rep(level, count)
        if is_old then
          packed = struct.pack('<BI7' .. level, own_layout, now, unpack(fields))
        else
          packed = struct.pack('<BI7I3' .. level, own_layout + WITH_BIRTH, now, birth, unpack(fields))
        end
      end
      redis.call('SET', partition, packed, 'PX', ceil((longest + ahead) / 1000) + extra_life)
    elseif last > 0 then
      redis.call('DEL', partition)
    end
    if logs then
      for _, log in ipairs(logs) do
        redis.call('ZREMRANGEBYSCORE', log[1], '-inf', now - log[2])
        redis.call('ZADD', log[1], now, log[3])
        redis.call('PEXPIRE', log[1], ceil((log[2] + ahead) / 1000) + extra_life)
      end
    end
    if slots then
      for _, slot in ipairs(slots) do
        redis.call('ZREMRANGEBYSCORE', slot[1], '-inf', clock)
        redis.call('ZADD', slot[1], clock + slot[2], lease)
        -- Leases of another instance may last longer than this one.
        local life = tonumber(redis.call('ZRANGE', slot[1], -1, -1, 'WITHSCORES')[2]) - clock
        if life > LONGEST_LEASE then life = LONGEST_LEASE end
        redis.call('PEXPIRE', slot[1], ceil(life / 1000) + extra_life)
      end
    end
  elseif is_later then
    -- Written by a clock that stood later: it belongs to now, or a caller without quota would stay so until that moment.
    redis.call('SETRANGE', partition, 1, struct.pack('<I7', now))
  end
end
if not part_sizes or not fits or are_independent then told = width end
local reply = struct.pack('<' .. string.rep('d', told), unpack(readings, 1, told))
return string.sub(charges, -8, -5) .. reply .. string.sub(charges, -4)
