"""What pages of the documentation say, done as they say it."""
