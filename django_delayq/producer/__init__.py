"""Schedules jobs: from a call in a view to a row and to Redis. Also the later changes of a job.

May import the nouns, the settings, signals, the store and the outbox. Only the outbox has queries. No threads.
"""
