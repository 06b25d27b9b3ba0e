"""The campaign's app: tasks that record their runs."""
