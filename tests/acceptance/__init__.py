"""A sample shop, written only from README.md and docs/. It is a separate project, in `project`, with separate settings, tests and
types.
"""
