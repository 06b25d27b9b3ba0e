"""How well the queues are, at addresses of the project: for load balancers, for monitors and for people.

May import all below; needs no extra. Queries where the database is asked, in a thread that may be left behind.
"""
