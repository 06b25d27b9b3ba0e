-- The target's key, which belongs to another program: the last key of the call.
local target = KEYS[#KEYS]
