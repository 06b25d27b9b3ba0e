"""The shop's only app: orders, what is done for them later, and a ledger of how that ended."""
