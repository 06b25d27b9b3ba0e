"""What people ask, answered alike for the admin and for commands: search, selection, overview, verbs, words.

May import the models, the mirror, the producer and the store's reads. It queries; it writes only through the producer, and how far an
operation is. No threads.
"""
