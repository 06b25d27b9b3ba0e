"""The commands that `manage.py` offers."""
