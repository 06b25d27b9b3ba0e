"""Subcommands of the gateway. May import the gateway; they query."""
