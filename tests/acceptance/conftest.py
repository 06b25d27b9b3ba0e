"""The project's tests run in a separate process with the project's settings."""

collect_ignore = ["project"]
