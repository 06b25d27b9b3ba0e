"""Faults made by rule, each of which a test must notice: python -m tests.mutation --help."""
