"""Management commands, and what each subcommand of `delayq` does.

May import everything but the admin. No threads; jobs change only through the producer.
"""
