"""Metrics as Prometheus reads them: of a worker, at its health port, and of the queues, at an address of the project.

May import all below, and prometheus_client (the extra `prometheus`). No threads of its own; queries where the queues are counted.
Nothing is imported here, so that a project without the extra may look.
"""
