"""Jobs that send HTTP requests (`delayq.deliver`) or push messages to lists and streams in Redis (`delayq.offer`).

May import the worker and all below it, and in `client` urllib3, which is loaded with the first delivery. Runs in threads of the worker,
with locks. It starts no threads, and makes no queries.
"""
