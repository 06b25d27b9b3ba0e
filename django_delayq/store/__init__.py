"""Everything that talks to Redis or Valkey. No other folder imports `redis`.

`connection` has the links to servers, `scripts` the calls that change something, and `reads` what people and checks ask.
May import the nouns. No settings, no models, no threads; the embedded server is its one process.
"""
