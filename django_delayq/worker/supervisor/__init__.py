"""The supervisor: forks the processes of a worker, keeps their leases, gives back what dead ones held. It never runs a task.

May import the worker's shared modules, and of `worker.process` only where it forks. One thread, and no call in it may block.
"""
