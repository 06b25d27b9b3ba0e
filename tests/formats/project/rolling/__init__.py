"""A project that runs under any release of django-delayq: it imports nothing of the tests, and only what every release has."""
