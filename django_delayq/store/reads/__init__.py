"""Reads for people and for the checks: single jobs, figures, depths, and whether a server or a Cluster is fit for use.

May import all of the store. No threads. Nothing here changes anything in Redis, and producer, mirror and worker may not import it.
"""
