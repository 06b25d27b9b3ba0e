"""The supervisor: forks the processes of a worker, extends their leases, and gives back the jobs of dead processes. It never runs a
task.

May import the worker's shared modules; it imports `worker.process` only where it forks. One thread, and no call in it may block.
"""
