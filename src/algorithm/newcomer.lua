--- numbers
local NEWCOMER = -7

-- The first level of an unknown caller. The entry comes before that of its bucket and contains the level as its bound.
-- While its time lasts, the caller is known, even if its bucket is full. The time is stored as a bucket of
-- microseconds, so that every script can carry it.

--- charge
    elseif drain == NEWCOMER then
      first_level, known_for, known_left = bound, weight, 0
      if kind == BUCKET and c == 1 and b < EXACT and b > elapsed then known_left, is_used = b - elapsed, true end
      levels[3 * count + 1], levels[3 * count + 2] = id, short
      whole[2 * count - 1], whole[2 * count] = 1, 1
