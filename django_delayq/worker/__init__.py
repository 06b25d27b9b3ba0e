"""The worker: a supervisor process, the task processes that it forks, and what both know.

May import the nouns, the settings, signals and the store. No models, no queries; processes are here and nowhere else, and so
are threads, but for those that extend the leases of locks.
"""
