"""The tables of the gateway. May import Django, and the fields of the core."""
