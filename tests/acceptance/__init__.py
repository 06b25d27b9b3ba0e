"""A sample shop, written from README.md and docs/ alone: a project of its own, in `project`, with its own settings, tests and types."""
