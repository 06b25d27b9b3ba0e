"""The sample project of all tests that start processes: its tasks, and the observations made afterwards."""
