"""What must hold, whatever is played: one shape of what happened, one set of laws over it, one judge. Nothing here plays anything."""
