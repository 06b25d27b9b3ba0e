"""One file per system. Each runs in that system's own environment as `python -m benchmarks.adapters.<name> <verb>`, and knows four
verbs: facts, put, cancel, worker. What they share stands in `base`, which needs nothing but Python.
"""
