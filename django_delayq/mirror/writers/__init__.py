"""Bulk writers of rows: one module per method that proved necessary in measurements.

May import the mirror's nouns and the ORM. Starts no threads, and does not decide what a row contains.
"""
