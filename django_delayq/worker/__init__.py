"""The worker: a supervisor process, the task processes that it forks, and the modules that both use.

May import the nouns, the settings, signals and the store. No models and no queries. Only this package starts processes and threads,
except for the threads that extend the leases of locks.
"""
