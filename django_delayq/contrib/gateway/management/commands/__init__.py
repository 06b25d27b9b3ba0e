"""The command `delayq_gateway`. May import the gateway; it queries."""
