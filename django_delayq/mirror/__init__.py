"""The database side. It writes the outbox, folds events into rows, publishes jobs that Redis does not have, restores and prunes.

May import all packages below it, and the ORM. It starts no threads: the caller runs each loop one pass at a time. No other folder
writes rows of jobs.
"""
