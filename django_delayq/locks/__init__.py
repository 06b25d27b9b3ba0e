"""Locks by name, for code that is no job, and for tasks: a lease in Redis, held for as long as the block runs.

May import the nouns, the settings, the store, the producer, and of the worker which job is running. No models, no queries; in a
process that holds locks, one thread for each server on which they are, which extends their leases.
"""
