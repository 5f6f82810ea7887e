-- Decides partial plans and peeks. Each section is inserted into another file.
--
-- ARGV[6]   '?' only returns the decision and the usage. Otherwise, the number of wanted units, and for each policy the
--           charge per unit, or 0 for a fixed charge: as many units as possible are charged, but at least one. The plan
--           then has one partition, which is first processed without units, to compute how many remain

--- what
-- Retries are only needed for sliding counters, which round their remaining units.
local MOST_TRIES = 8
local units, most, granted, tries = plans ~= '?' and plans, 0, 0, 0
if units then most = read('<d', units) end
plans = nil
--- again
    is_again, may_move = false, units ~= false
    if is_moving then
      fits = false
    elseif units and tries == 0 and is_trial then
      if fits and most > 1 then granted = most else granted = 1 end
      is_again = true
    elseif units and tries > 0 and not fits and granted > 1 and tries < MOST_TRIES then
      granted, is_again = granted - 1, true
    end
    -- The reply is the reading for the granted units.
    if is_again then
      tries, width, fits, is_charged, rates = tries + 1, 1, true, false, nil
    elseif not is_moving then
      told = nil
    end
--- trial
      is_trial = true
--- cost
    local unit = 0
    if units then unit = read('<d', units, (charge_position - first_charge) / CHARGE * 8 + 9) end
    if unit > 0 and not is_moving then charge = granted * unit end
--- before what is left
    if is_trial and unit > 0 and not is_shadow then
      local left
--- after what is left
      end
      if left < most then most = left end
    end
