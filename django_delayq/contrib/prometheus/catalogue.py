"""Every metric there is: its name, type, labels and meaning. What is not listed here cannot be exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from django_delayq.console.overview import FRESH, MOST_COUNTED
from django_delayq.worker.tally import MOST_TASKS


class Metric(NamedTuple):
    """One of them. The names of counters end in `_total`."""

    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    meaning: str


OF_WORKERS: Final[Mapping[str, Metric]] = {
    "delayq_worker_info": Metric("gauge", ("version",), "Always 1; the version of django-delayq that this worker runs."),
    "delayq_worker_start_time_seconds": Metric("gauge", (), "When the worker was started, in seconds since 1970."),
    "delayq_worker_state": Metric(
        "gauge", ("state",), "1 for the state that the worker is in (working, quiet, leaving), 0 for others."
    ),
    "delayq_worker_redis_reached": Metric("gauge", (), "1 if the worker has reached a server of its queues in the last 15 seconds."),
    "delayq_worker_processes": Metric("gauge", ("kind",), "Processes that are there: task (run jobs), loop (keep records)."),
    "delayq_worker_process_restarts_total": Metric(
        "counter", ("process", "cause"), "Processes that were started in the place of one that died, or that was replaced."
    ),
    "delayq_worker_memory_bytes": Metric(
        "gauge", (), "Resident memory of all processes of the worker; what they share counts in each."
    ),
    "delayq_worker_slots": Metric("gauge", (), "How many jobs the worker runs at once, at most."),
    "delayq_worker_slots_busy": Metric("gauge", (), "How many jobs run now."),
    "delayq_worker_leases": Metric(
        "gauge", ("queue", "state"), "Leases that the worker holds: of jobs that are waiting in it, running, or settling."
    ),
    "delayq_worker_leases_lost_total": Metric("counter", ("queue",), "Leases that this worker lost: another one may have run the job."),
    "delayq_worker_runs_total": Metric(
        "counter",
        ("queue", "task", "outcome"),
        f"Runs that ended in this worker. With more than {MOST_TASKS} tasks, those behind the first {MOST_TASKS} by name are other.",
    ),
    "delayq_worker_run_seconds": Metric("histogram", ("queue",), "How long runs took."),
    "delayq_worker_lateness_seconds": Metric("histogram", ("queue",), "How long after its date a run began, by Redis' clock."),
    "delayq_worker_events_folded_total": Metric("counter", ("queue",), "Entries of the event stream that this worker's mirror folded."),
    "delayq_worker_mirror_lag_seconds": Metric("gauge", ("queue",), "Age of the oldest event that no mirror has folded."),
    "delayq_worker_mirror_lag_events": Metric("gauge", ("queue",), "Entries of the event stream that no mirror has folded."),
}
OF_QUEUES: Final[Mapping[str, Metric]] = {
    "delayq_up": Metric(
        "gauge",
        ("part",),
        "1 if Redis, or the database, could be asked; what it knows is missing if not. Of several servers all must have answered.",
    ),
    "delayq_jobs": Metric(
        "gauge", ("queue", "state"), "Jobs in Redis: scheduled, running, or failed (of the last seven days at least)."
    ),
    "delayq_jobs_due": Metric("gauge", ("queue",), "Scheduled jobs whose date has passed."),
    "delayq_jobs_delayed": Metric("gauge", ("queue",), "Scheduled jobs whose date is still to come."),
    "delayq_jobs_retrying": Metric("gauge", ("queue",), "Scheduled jobs that have run before, without those that ask."),
    "delayq_jobs_failed_lately": Metric(
        "gauge", ("queue", "within"), "Jobs that failed within the last hour (1h) or day (1d), and have not been requeued."
    ),
    "delayq_jobs_last_minute": Metric(
        "gauge", ("queue", "kind"), "What happened to jobs in the last whole minute, by any worker and process."
    ),
    "delayq_oldest_late_seconds": Metric("gauge", ("queue",), "By how much the oldest due job is late; 0 for none."),
    "delayq_queue_paused": Metric("gauge", ("queue",), "1 if somebody has paused the queue."),
    "delayq_queue_partitions": Metric("gauge", ("queue",), "Partitions of the queue, where it has or had several."),
    "delayq_queue_partitions_away": Metric("gauge", ("queue",), "Those of them that cannot be asked, and are in no other number."),
    "delayq_queue_workers": Metric("gauge", ("queue",), "Workers that claim from the queue. Not told of queues of messages."),
    "delayq_queue_slots": Metric("gauge", ("queue",), "How many jobs these run at once, at most."),
    "delayq_mirror_lag_events": Metric("gauge", ("queue",), "Entries of the event stream that no mirror has folded."),
    "delayq_mirror_lag_jobs": Metric("gauge", ("queue",), "Of how many jobs these entries tell, which MIRROR_MAX_EVENTS bounds."),
    "delayq_mirror_lag_seconds": Metric("gauge", ("queue",), "Age of the oldest of these entries."),
    "delayq_tombstones": Metric("gauge", ("queue",), "Jobs that ended lately, of which Redis keeps that they have."),
    "delayq_outbox_rows": Metric(
        "gauge",
        ("queue",),
        f"Committed rows older than {FRESH:.0f} s that Redis has not confirmed; counted up to {MOST_COUNTED + 1} of all queues.",
    ),
    "delayq_outbox_oldest_seconds": Metric("gauge", (), "Age of the oldest of these rows; 0 for none."),
    "delayq_unresolved_jobs": Metric(
        "gauge",
        ("queue",),
        f"Unresolved jobs: no event says how they ended, and a person decides. Counted up to {MOST_COUNTED + 1} of all queues.",
    ),
    "delayq_far_jobs": Metric(
        "gauge",
        ("queue",),
        f"Jobs behind the horizon, which the database alone has; counted up to {MOST_COUNTED + 1}. 0 for queues without one.",
    ),
    "delayq_far_late": Metric("gauge", ("queue",), "1 if the first of these should have been brought into Redis by now."),
    "delayq_set_aside_events": Metric(
        "gauge", ("queue",), f"Events that the mirror has set aside; counted up to {MOST_COUNTED + 1} of all queues."
    ),
    "delayq_schedules_wrong": Metric(
        "gauge",
        ("why",),
        "Schedules that make no jobs (trouble), whose ticks nobody has written for a minute (late), or that no code declares any "
        "more, for a week (retired).",
    ),
    "delayq_workers": Metric("gauge", ("state",), "Workers by what they last said: working, quiet, leaving; silent for half a minute."),
    "delayq_slots": Metric("gauge", (), "How many jobs all workers that are not silent run at once, at most."),
    "delayq_slots_busy": Metric("gauge", (), "How many jobs run in them, as they last said."),
    "delayq_redis_round_trip_seconds": Metric("gauge", (), "How long Redis took to answer."),
    "delayq_redis_clock_skew_seconds": Metric("gauge", (), "Redis' clock minus that of the process that asked."),
    "delayq_redis_memory_bytes": Metric("gauge", (), "Memory that Redis uses."),
    "delayq_redis_memory_limit_bytes": Metric("gauge", (), "maxmemory of Redis; 0 for none."),
    "delayq_redis_evicts": Metric("gauge", (), "1 if Redis may throw jobs away at maxmemory (a policy other than noeviction)."),
    "delayq_redis_append_only": Metric("gauge", (), "1 if Redis keeps an append-only file."),
}
METRICS: Final[Mapping[str, Metric]] = {**OF_WORKERS, **OF_QUEUES}
