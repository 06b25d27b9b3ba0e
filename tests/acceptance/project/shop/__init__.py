"""The sample shop's project: settings, addresses, and what an ASGI server asks for."""
