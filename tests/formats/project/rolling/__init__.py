"""A project that runs with any release of django-delayq: it does not import the tests, and only uses what every release has."""
