"""The fault campaign: random load under random faults, recorded by every process, judged at the end. `python -m tests.campaign`."""
