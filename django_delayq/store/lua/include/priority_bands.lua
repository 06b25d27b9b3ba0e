-- The three bands of the schedule, by the letter in a record's header or in `runs`.
local BANDS = {h = k_high, n = k_normal, l = k_low, H = k_high, N = k_normal, L = k_low}
-- Their order is strict: due jobs in the first band run before all due jobs in the others.
local BAND_ORDER = {'h', 'n', 'l'}
