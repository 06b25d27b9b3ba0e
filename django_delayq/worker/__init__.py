"""Floor 3, the worker: a supervisor process, the task processes it forks, and the loops in both. Nothing here knows the database."""
