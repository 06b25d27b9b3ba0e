-- The three bands of the schedule, by the letter in a record's header or in `runs`.
local BANDS = {h = k_high, n = k_normal, l = k_low, H = k_high, N = k_normal, L = k_low}
-- Their order, which is strict: what is due in the first goes before all that is due in the others.
local BAND_ORDER = {'h', 'n', 'l'}
