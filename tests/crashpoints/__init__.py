"""Crash points: at every failpoint, for every kind of job, a process is killed, frozen or made to err; nothing may be lost by it."""
