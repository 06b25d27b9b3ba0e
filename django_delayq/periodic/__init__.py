"""Tasks by calendar: their declarations, the dates of their ticks, and the loop that writes the job of the next one.

May import all below it, the mirror included, and the ORM. No own threads: the process of records runs the loop of
`due_ticks`, one pass per call. `overlap` runs in the consumer threads of workers.
"""
