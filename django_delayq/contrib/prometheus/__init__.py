"""Metrics for Prometheus: of a worker, at its health port, and of the queues, at a URL of the project.

May import all below, and prometheus_client (the extra `prometheus`). It starts no threads. It queries rows to count jobs. This file
imports nothing, so projects without the extra can import the package.
"""
