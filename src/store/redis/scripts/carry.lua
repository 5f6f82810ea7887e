  -- Levels of policies that the plan does not contain belong to other instances. Each is updated by its algorithm and
  -- kept until it is empty. The most recently charged levels come first; if there are too many, the last ones are
  -- dropped.
  if HEADER + known * size < last then
    local own = count
    for position = HEADER + 1, last, size do
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
--- carry
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
