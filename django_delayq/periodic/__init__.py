"""Tasks by calendar: their declarations, the dates of their ticks, and the loop that writes the job of the next one.

May import all below it, the mirror included, and the ORM. No threads: the loop does one pass at a time for whoever calls it.
"""
