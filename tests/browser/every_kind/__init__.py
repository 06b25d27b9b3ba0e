"""An app with a task that has one parameter of every kind that a form supports."""
