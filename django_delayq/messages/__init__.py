"""Consumers of the project's own: messages are pushed into a queue, and pulled from it in batches, by whoever asks for them.

May import the nouns, the settings, the store, the producer, and of the worker what an end is told with. No models, no queries, no
threads: callers bring theirs.
"""
