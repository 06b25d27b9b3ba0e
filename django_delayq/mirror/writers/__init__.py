"""The ways in which rows are written in bulk, one per road that was measured to need its own.

May import the mirror's nouns and the ORM. No threads, and no decision on what a row says.
"""
