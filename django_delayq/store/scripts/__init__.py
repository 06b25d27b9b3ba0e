"""The scripts of Redis and what they read and write: records, events, formats, the site, leases, locks and worker beats.

May import the nouns, `store.keys` and `store.connection`. No threads: each call is one script that may be repeated.
"""
