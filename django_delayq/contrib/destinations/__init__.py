"""Offers: what a worker puts into a list or a stream of others, at its date. `DELAYQ = {"TARGETS": {…}}`, and `delayq.offer(…)`.

May import all below; needs no other package. No threads of its own, no queries.
"""
