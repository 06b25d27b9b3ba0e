"""Is this server fit to keep promises? Pure judgement of facts: the worker's start, `delayq doctor` and the deploy checks share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from django_delayq.store.inspector import ServerFacts

OLDEST: Final = {"redis": (6, 2), "valkey": (7, 2)}
MOST_SKEW: Final = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: a check id, how bad, what, and the remedy. The worker refuses to start on an error."""

    code: str
    level: Literal["error", "warning"]
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message} {self.hint}"


def server_findings(facts: ServerFacts) -> list[Finding]:
    """What speaks against this server, the worst first."""
    found: list[Finding] = []
    version = ".".join(map(str, facts.version))
    if facts.policy not in ("", "noeviction"):
        found.append(
            Finding(
                "E010",
                "error",
                f"Redis may evict jobs: its maxmemory-policy is {facts.policy}.",
                "Set maxmemory-policy noeviction, or give the jobs a server of their own: an evicted job is lost without a trace.",
            )
        )
    if facts.version[:2] < OLDEST.get(facts.flavour, (0,)):
        oldest = ".".join(map(str, OLDEST[facts.flavour]))
        found.append(
            Finding(
                "E011",
                "error",
                f"{facts.flavour.capitalize()} {version} is too old: the scripts need {oldest}.",
                "Upgrade the server.",
            )
        )
    if facts.role not in ("", "master"):
        found.append(
            Finding(
                "E012",
                "error",
                f"The server is a {facts.role}, which takes no writes.",
                "Name the primary in DELAYQ['REDIS'].",
            )
        )
    if not facts.aof and not facts.rdb:
        found.append(
            Finding(
                "W010",
                "warning",
                "Redis keeps nothing on disk: a restart forgets all jobs.",
                "Set appendonly yes. Durable jobs come back from the database, those of redis durability do not.",
            )
        )
    elif not facts.aof:
        found.append(
            Finding(
                "W011",
                "warning",
                "Redis writes snapshots only: a crash takes it back to the last one.",
                "Set appendonly yes and appendfsync everysec.",
            )
        )
    if abs(facts.skew) > MOST_SKEW + facts.round_trip:
        found.append(
            Finding(
                "W012",
                "warning",
                f"The clock of Redis' host is {abs(facts.skew):.1f} s {'ahead of' if facts.skew > 0 else 'behind'} this host's.",
                "Run an NTP client on both: jobs become due by Redis' clock, and dates (run_at) are made by this host's.",
            )
        )
    return found
