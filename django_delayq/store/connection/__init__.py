"""Links to Redis: addresses, connections, Cluster and Sentinel, the embedded server, and the meaning of error replies.

May import the nouns and `store.keys`. No threads, but threads share the links; the embedded server is the one process.
"""
