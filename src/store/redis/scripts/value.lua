  -- Keys of other types and invalid values are ignored. Values of newer releases are not changed.
  local value = redis.pcall('GET', partition)
  local layout, format, size, last = NARROW, '<I4I3I4', 11, 0
  local now, at, birth, is_later, is_newer = clock, clock, nil, false, false
  local its_layout, its_moment, its_birth = 0, nil, nil
  if type(value) == 'string' and #value > HEADER then
    its_layout, its_moment, its_birth = read('<BI7I3', value)
    is_newer = its_layout > WIDE_MIXED and its_layout <= LAST_LAYOUT
  end
  if its_layout > 0 and #value <= LARGEST then
    if its_layout == WIDE then layout, format, size = WIDE, '<I4I7I7I7', 25
    elseif its_layout == NARROW_MIXED then layout, format, size = NARROW_MIXED, '<I4I3I4I4B', 16
    elseif its_layout == WIDE_MIXED then layout, format, size = WIDE_MIXED, '<I4I7I7I7B', 26 end
    if its_layout == layout and (#value - HEADER) % size == 0 then
      last, birth, at = #value, its_birth, its_moment
      if at > clock then
        if at - clock <= MAX_CLOCK_STEP then now = at else is_later = true end
      end
    end
  end
