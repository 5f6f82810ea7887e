-- The decisions that take a part of a plan, or nothing of it. Each section has its place in another file.
--
-- ARGV[6]   '?' only asks whether the plan fits, and what is used. Otherwise the number of units that are wanted, and for
--           each policy the charge of one unit, or 0 where the charge stays as it is: as many units are charged as fit,
--           and one at least. There is one partition then. It is gone through without a unit first, which finds how many
--           are left

--- what
-- Only counters are tried again, whose rest is rounded.
local MOST_TRIES = 8
local units, most, granted = are_independent ~= '?' and are_independent, 0, 0
if units then most = read('<d', units) end
are_independent = nil
--- steps
if units then steps = MOST_TRIES else steps = parts end
--- which
  if not units then
    is_trial = true
  elseif step > 1 then
    if step > 2 and (fits or granted == 1) then break end
    if step > 2 then granted = granted - 1 elseif fits and most > 1 then granted = most else granted = 1 end
    fits, is_charged, width, key_index, last_charge = true, false, 1, 0, 0
  end
--- cost
    local unit = 0
    if units then unit = read('<d', units, (charge_position - first_charge) / CHARGE * 8 + 9) end
    if unit > 0 then charge = granted * unit end
--- before what is left
    if step == 1 and unit > 0 and not is_shadow then
      local left
--- after what is left
      end
      if left < most then most = left end
    end
--- answer
told = width
