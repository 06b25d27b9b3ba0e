"""Integrations with other packages, each with an extra in pyproject.toml.

May import everything except commands and pages. The rest of the package does not import it. Each integration names its dependencies.
"""
