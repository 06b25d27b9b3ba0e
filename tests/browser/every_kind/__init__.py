"""An app with a task whose parameters are of every kind that a form asks for."""
