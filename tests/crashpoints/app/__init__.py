"""The app of the crash points: tasks of every kind."""
