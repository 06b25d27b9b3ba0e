"""Scheduling: from a call in a view to a row and to Redis, and what changes a job later.

May import the nouns, the settings, signals and the store. No models, no queries (a protocol asks the database), no threads.
"""
