"""Follows the pages of the documentation step by step, as they describe it."""
