"""One file per system. Each runs in that system's environment as `python -m benchmarks.adapters.<name> <verb>` and has four verbs:
facts, put, cancel, worker. `base` has their common code, which needs only Python.
"""
