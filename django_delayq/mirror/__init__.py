"""The database side: writes the outbox, folds events into rows, publishes what Redis does not have, restores, prunes.

May import all below it, and the ORM. No threads: each loop does one pass at a time for whoever calls it. No other folder writes rows
of jobs.
"""
