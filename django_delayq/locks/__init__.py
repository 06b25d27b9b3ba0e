"""Locks by name, in tasks and other code: a lease in Redis, held while the block runs.

May import the nouns, the settings, the store, the producer, and the running job from the worker. No models, no queries. A process that
holds locks has one thread for each of their servers, which extends the leases.
"""
