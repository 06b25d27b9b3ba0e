"""The shop's only app: orders, their later jobs, and a ledger of how these ended."""
