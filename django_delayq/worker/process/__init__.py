"""A task process: claims jobs, runs them, and tells Redis how they ended.

May import the worker's shared modules, never `worker.supervisor`. It has threads, and may die at any line.
"""
