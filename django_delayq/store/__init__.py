"""All that speaks to Redis or Valkey; no other folder imports `redis`.

May import the nouns. No settings, no models, no threads; the embedded server is its one process.
"""
