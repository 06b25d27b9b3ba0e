"""Words that readers search for -> the page that answers them, for Sphinx's search. A page needs none for the words of its title."""

from __future__ import annotations

from typing import Final

WORDS: Final[dict[str, str]] = {
    "start/quickstart": "install, getting started, first job, demo",
    "start/tutorial/index": "example, shop",
    "howto/send-email": "e-mail, email, mail, smtp, send mail",
    "howto/reminders": "reminder, debounce, postpone, reschedule",
    "howto/close-unpaid-orders": "delay, delay a task, delayed job, cancel, unpaid order, expire order",
    "howto/call-a-url": "webhook, webhooks, http request, call an api, callback",
    "howto/run-every-night": "cron, crontab, schedule daily, periodic, beat, every night",
    "howto/one-at-a-time": "lock, mutex, concurrency, rate limit, throttle, serial, one at a time, run jobs in order",
    "howto/recipes": "fan out, chain, batch, chord, progress",
    "howto/test-your-tasks": "test, testing, pytest, unit test, eager, tests",
    "howto/move-from-another-queue": "migrate celery, celery, rq, huey, dramatiq, migrate from celery, sidekiq",
    "howto/django-tenants": "multi tenant, multi-tenant, tenant, django-tenants, schema, tenants",
    "howto/asgi": "async, asgi, async view, uvicorn, channels",
    "howto/windows-and-macos": "windows, macos, mac, wsl",
    "howto/deploy": "docker, kubernetes, graceful shutdown, systemd, heroku, deploy, compose, helm, sigterm, container, k8s",
    "howto/run-workers": "worker, start a worker, processes, threads, concurrency, memory, roles, burst, fork, autoreload",
    "howto/run-redis": "redis, failover, backup, valkey, acl, persistence, sentinel, appendonly, eviction",
    "howto/pgbouncer": "pgbouncer, connection pool, pool, too many connections",
    "howto/upgrade": "upgrade, rolling deploy, release",
    "howto/monitor": "prometheus, grafana, metrics, alert, keda, autoscale, opentelemetry, sentry, monitoring",
    "howto/admin": "admin, requeue, dashboard, permission, support staff",
    "howto/erase-personal-data": "gdpr, privacy, personal data, delete user, forget",
    "howto/troubleshoot": "job does not run, job runs twice, stuck, dead letter, not running, error, failed job, troubleshooting",
    "topics/guarantees": "exactly once, at least once, guarantee, lost job, duplicate, job runs twice",
    "topics/delivery-and-retries": "retry, retry a job, snooze, max_attempts, lease, at least once, retries, backoff, idempotent, "
    "idempotency, timeout, dead letter, dead letter queue, max retries, poison, crash, job runs twice",
    "topics/keys": "unique job, deduplicate, key, debounce, cancel a job, cancel, unique, replace a job",
    "topics/batches": "batch, chain, group, chord, workflow, then, next job, fan-out, fan-in, callback",
    "topics/periodic-tasks": "cron, periodic, time zone, daylight saving, missed run, crontab",
    "topics/transactions": "transaction, on commit, atomic, rollback, outbox, on_commit",
    "topics/scaling": "priority, high priority, redis cluster, partition, throughput, many jobs, performance",
    "topics/security": "signing, secret, security, tls, sensitive",
    "topics/comparison": "celery, rq, compare, alternative",
    "more/messages": "message, pull, consumer, ack, push",
    "more/locks": "lock, distributed lock, mutex, redlock, fencing",
    "more/gateway": "rest, http api, other languages, gateway, token",
    "more/django-tasks": "django tasks, tasks framework, enqueue, backend",
    "reference/settings": "settings, configuration, DELAYQ, configure, options",
    "reference/commands": "command line, manage.py, commands",
    "reference/tasks": "delay, priority, timeout, cancel, schedule, options, retry, max_attempts, result, snooze, on_failure",
    "reference/worker": "graceful shutdown, signal, sigterm, exit code, threads, processes",
}
