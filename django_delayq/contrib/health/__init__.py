"""The health of the queues, at URLs of the project.

May import all below, and needs no extra. It queries the database in a thread that it can abandon.
"""
