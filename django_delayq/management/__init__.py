"""The management commands and the subcommands of `delayq`.

May import everything except the admin. No threads. Jobs change only through the producer.
"""
