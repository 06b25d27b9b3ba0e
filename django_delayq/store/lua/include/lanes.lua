-- The three lanes of the schedule, by the letter in a record's header or in `runs`.
local LANES = {h = k_high, n = k_normal, l = k_low, H = k_high, N = k_normal, L = k_low}
