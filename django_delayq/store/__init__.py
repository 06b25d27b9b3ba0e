"""Floor 1: everything that speaks to Redis or Valkey. No other package of the app imports `redis`."""
