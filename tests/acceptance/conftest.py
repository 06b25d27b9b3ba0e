"""The project's tests run in a process of their own, with the project's settings."""

collect_ignore = ["project"]
