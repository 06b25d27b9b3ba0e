"""A third-party app that imports its names from the package django-tasks on every Django version."""
