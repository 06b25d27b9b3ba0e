"""The database side. It folds events into rows, publishes jobs that Redis does not have, restores and prunes.

May import all packages below it, and the ORM. It starts no threads: the process of records runs each loop one pass at a time. The
consumer threads of workers call `atomic_runs` and `database_connections`. Only this folder and the producer's outbox
write rows of jobs.
"""
