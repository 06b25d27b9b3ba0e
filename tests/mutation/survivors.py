"""Faults that no test notices, each with the reason. A key is what `mutant.py` makes of the file, the text of the line and the rule; one that
no rule makes any more fails the tests, and one that a test has come to notice fails the run.
"""

from __future__ import annotations

NOTHING = "changes nothing: "
COSTS = "changes only what it costs: "
MARGIN = "moves a margin that nobody is promised: "

SURVIVORS = {
    "store/lua/claim.lua: local SOON = 50 -- ms [one less]": MARGIN + "how soon a worker asks again on ground that is not confirmed",
    "store/lua/claim.lua: if not generation or not string.find(generation, '^%w+$') or #generation > 64 then -- none, or none of ours"
    " [one less]": MARGIN + "no generation of ours is so long",
    "store/lua/claim.lua: generation = string.sub(nonce, 1, 40) .. seconds .. us [one less]": NOTHING + "a nonce has 16 letters",
    "store/lua/claim.lua: asked = false [false to true]": COSTS + "a look into an empty hash per job of this one claim",
    "store/lua/claim.lua: local _, lease_end = unpack(redis.call('ZRANGE', k_leases, 0, 0, 'WITHSCORES')) [one more] 2": COSTS
    + "the second lease is read, too, and not looked at",
    "store/lua/confirm.lua: local looked, looked_at, phase, new, behind, mirrored, progress = unpack(ARGV, 4, 10) [one more] 2": NOTHING
    + "there is no eleventh argument",
    "store/lua/extend.lua: local id, nonce, done = unpack(ARGV, FIRST + (i - 1) * STRIDE, FIRST + i * STRIDE - 1) [- to +] 2": NOTHING
    + "what is unpacked behind the third is not named",
    'store/lua/include/alive.lua: local guarded = from and till and from < now and now < till -- "nan", too, lies nowhere'
    " [< to <=]": MARGIN + "a guard that begins in this very millisecond",
    "store/lua/include/begin.lua: local colon = string.find(most, ':', 1, true) [true to false]": NOTHING + "a colon is no pattern",
    "store/lua/include/begin.lua: return #text == 22 and not string.find(text, '%W') and text <= '7n42DGM5Tflk9n8mt7Fhc7'"
    " [<= to <]": MARGIN + "the id of 128 ones, which no clock makes",
    "store/lua/include/finish.lua: noted = redis.call('EXISTS', k_cancels, k_progress) > 0 [> to >=]": COSTS
    + "two calls per job, on hashes that are not there",
}
