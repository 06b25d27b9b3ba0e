"""What joins delayq to other packages: a folder each, and an extra of pyproject.toml each.

May import everything but commands and pages; nothing of the package imports it. Each folder says what else it needs.
"""
