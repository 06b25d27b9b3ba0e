-- The key of others on which the script acts: the last one that it is called with.
local target = KEYS[#KEYS]
