"""The sample shop's project: settings, URLs and the ASGI application."""
