"""Locks by name, for code that is no job, and for tasks: a lease in Redis, held for as long as the block runs.

May import the nouns, the settings, the store, the producer, and of the worker which job is running. No models, no queries; one thread
in each process that holds a lock for long, which extends the leases of all of them.
"""
