"""The sample project of all tests that start processes of their own: what they run, and what is seen of it afterwards."""
