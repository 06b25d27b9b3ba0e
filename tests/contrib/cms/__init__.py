"""An app of others that takes its words from the package django-tasks on every Django."""
