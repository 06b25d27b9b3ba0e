"""The invariants of the queue: one data model of what happened, one set of laws over it, and one judge. Nothing here runs jobs."""
