"""Messages: a project pushes them into a queue, and its own consumers pull them in batches.

May import the nouns, the settings, the store, the producer, and the outcome of a run from the worker. No models, no queries, no threads
of its own.
"""
