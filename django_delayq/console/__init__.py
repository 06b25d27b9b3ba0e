"""Reads and actions for people, shared by the admin and the commands: search, selection, overview, verbs and texts.

May import the models, the mirror, the producer and the reads of the store. It queries the database. It writes jobs only through the
producer, and the progress of operations. No threads.
"""
