"""Where a job ends that is no function: requests to other hosts (`delayq.deliver`), lists and streams of Redis (`delayq.offer`).

May import the worker and all below it, and in `client` urllib3, which is there once the first delivery is sent. Threads of the worker
come through here; locks, no threads of its own. No queries.
"""
