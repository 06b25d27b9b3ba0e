"""Scheduling: from a call in a view to a row and to Redis, and what changes a job later.

May import the nouns, the settings, signals, the store and the outbox, which alone has the queries. No threads.
"""
