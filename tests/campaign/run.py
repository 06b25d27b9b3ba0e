"""The campaign: starts everything, does harm, mends it, waits for rest, and lets the judge speak."""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django

from tests.app.record import Recorder
from tests.campaign import report, script
from tests.campaign.second_site import rivalry
from tests.campaign.stage import QUEUES, SETTINGS, Stage
from tests.laws.history import CAMPAIGN, History
from tests.laws.judge import Breach, judge
from tests.stage import WAIT, project, sqlite
from tests.topologies import PROGRAMS

FINAL = "final.pickle"
REST = 15.0  # seconds at most between faults
AFTER_STORM = 5.0  # seconds, for the leases of a lost host to end


def options(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long load and faults go on")
    parser.add_argument("--seed", type=int, default=1, help="gives the operations and the faults")
    parser.add_argument("--jobs-rate", type=float, default=450, help="jobs per second, in all")
    parser.add_argument("--database", choices=("sqlite", "postgres", "mysql"), default=_database())
    parser.add_argument("--fsync", choices=("always", "everysec"), default="everysec")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--webs", type=int, default=3)
    parser.add_argument("--servers", type=int, choices=sorted(QUEUES), default=1, help="how many Redis servers, each with some queues")
    parser.add_argument("--horizon", type=float, default=0, help="HORIZON in seconds, 1.5 say: what is due later is far; 0: none is")
    parser.add_argument("--partitions", type=int, default=1, help="how many partitions each queue has")
    parser.add_argument("--roll", action="store_true", help="the number of partitions goes from 4 to 16 and back, again and again")
    parser.add_argument("--cluster", choices=sorted(PROGRAMS), default="", help="a Cluster of three masters, each with a replica")
    parser.add_argument("--split", action="store_true", help="with --cluster: its network may be split, with clients on both sides")
    parser.add_argument("--replicas", action="store_true", help="jobs of redis durability are answered for when a replica has them")
    parser.add_argument("--pooled", action="store_true", help="each process has a pool of connections to PostgreSQL")
    parser.add_argument("--skew", action="store_true", help="workers are started on hosts whose clock is hours or days off")
    parser.add_argument("--second-site", action="store_true", help="another site, with its own database, comes to the same Redis")
    parser.add_argument("--sentinel", action="store_true", help="a master with its replica, and three Sentinels")
    parser.add_argument("--schedules", type=int, default=12, help="how many schedules the code declares")
    parser.add_argument("--faults", default="", help="only these kinds, parted by commas; 'none' for none")
    parser.add_argument("--without", default="", help="not these kinds")
    parser.add_argument("--judge", type=Path, help="judge once more what a campaign left in that folder")
    parser.add_argument("--slack", type=float, default=1.0, help="recovery may take so many times what is promised; 0: any time")
    parser.add_argument("--keep", action="store_true", help="keep the folder when all is well, too")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Returns the exit code: 0 when nothing is wrong."""
    given = options(words)
    if given.judge:
        return _again(given)
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    stage = Stage(
        folder,
        database=given.database,
        fsync=given.fsync,
        workers=given.workers,
        threads=given.threads,
        webs=given.webs,
        schedules=given.schedules,
        servers=given.servers,
        horizon=given.horizon,
        partitions=16 if given.roll else given.partitions,
        rolls=given.roll,
        cluster=given.cluster,
        splits=given.split,
        sentinel=given.sentinel,
        replicas=given.replicas,
        pooled=given.pooled,
        skews=given.skew,
        second_site=given.second_site,
    )
    try:
        stage.open()
        django.setup()
        began = time.monotonic()
        _play(stage, given)
        played = time.monotonic() - began
        history = _settle(stage, played)
        breaches = judge(history) + [Breach("ended by itself", "", text) for text in stage.fallen]
        heading = (
            f"campaign    seed {given.seed}, {played:.0f} s of load and faults, {stage.server()}, fsync {given.fsync}, "
            f"{given.database}; quiet after {time.monotonic() - began - played:.0f} s more"
        )
        breaches += report.too_slow(history, given.slack)
        print(report.page(history, breaches, stage.notes + report.last_words(folder), heading))
        if breaches:
            print(report.details(history, breaches))
    except BaseException:
        print(f"folder      {folder}")
        raise
    finally:
        stage.close()
    if breaches or given.keep:
        print(f"folder      {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if breaches else 0


def _play(stage: Stage, given: argparse.Namespace) -> None:
    plot = script.Script(stage, f"faults/{given.seed}", _names(given.faults), _names(given.without))
    record = Recorder(stage.folder, "faults")
    stage.start(seed=given.seed, rate=given.jobs_rate)
    stage.await_schedules()
    if stage.second_site is not None:
        _await_sites(stage)
    end = time.monotonic() + given.seconds
    _rest(stage)
    for scene in plot.scenes():
        if time.monotonic() > end - 2.0:
            break
        print(f"{end - time.monotonic():6.0f} s left: {'one fault at a time' if scene.calm else 'a storm'}", flush=True)
        script.play(scene, record, end, lambda: _rest(stage), given.slack)
        stage.mend()
        if not scene.calm:
            time.sleep(min(AFTER_STORM, max(0.0, end - time.monotonic())))
            _rest(stage)
    time.sleep(max(0.0, end - time.monotonic()))


def _await_sites(stage: Stage) -> None:
    """Until each partition in Redis has the id of the campaign's own database: an empty Redis belongs to the first that comes."""
    deadline = time.monotonic() + WAIT
    while "" in (found := _sites()).values() or not found:
        if time.monotonic() > deadline:
            raise RuntimeError(f"queues have no site: {found}")
        time.sleep(0.2)


def _sites() -> dict[str, str]:
    """The ids of the sites that the partitions in Redis have, by their tags; "" for none."""
    from django_delayq import conf
    from django_delayq.store.connection.places import Nodes
    from django_delayq.store.keys import Keys, tag

    config, found = conf.get(), {}
    redis = Nodes(config.redis, config.own_servers, name="campaign", timeout=10)
    for name in config.queues:
        for partition in config.queue(name).served:
            keys = Keys(config.prefix, name, partition)
            found[tag(name, partition)] = (redis.of(name, partition).execute("HGET", keys["meta"], "site") or b"").decode()
    redis.close()
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _again(given: argparse.Namespace) -> int:
    os.environ.update(project(given.judge, "unix:///", sqlite(":memory:"), SETTINGS))  # what is read are its files
    django.setup()
    history = _read(given.judge, *pickle.loads((given.judge / FINAL).read_bytes()))
    breaches = judge(history) + report.too_slow(history, given.slack)
    print(report.page(history, breaches, [], f"campaign    {given.judge}"))
    print(report.details(history, breaches))
    return 1 if breaches else 0


def _read(folder: Path, final: Any, calendar: Any) -> History:
    from tests.app import seen

    history = seen.history(folder, final, CAMPAIGN)
    history.rivalry = rivalry(folder)
    history.calendar.ticks, history.calendar.turns, history.calendar.jobs = calendar
    return history


def _rest(stage: Stage) -> None:
    """Until what is due runs, so that the next fault can be told from the last one."""
    time.sleep(0.5)
    deadline = time.monotonic() + REST
    while stage.behind() > 50 and time.monotonic() < deadline:
        time.sleep(0.2)


def _settle(stage: Stage, played: float) -> History:
    from django_delayq import conf
    from django_delayq.store.connection.places import Nodes
    from django_delayq.store.keys import Keys
    from django_delayq.store.scripts.queue import QueueStore
    from tests.app import seen

    stage.end_load()
    redis = Nodes(conf.get().redis, conf.get().own_servers, name="campaign", timeout=10)
    queues = [Keys(conf.get().prefix, name, partition) for name in conf.get().queues for partition in conf.get().queue(name).served]
    deadline, calm, last = time.monotonic() + 60 + played / 2, 0, ""
    while calm < 3 and time.monotonic() < deadline:
        stage.mend()
        if not _turned_off(stage):
            continue
        last = seen.restless(seen.ask, redis, queues)
        calm = 0 if last else calm + 1
        time.sleep(0.5)
    if calm < 3:
        stage.notes.append(f"never quiet: {last}")
    for keys in queues:
        QueueStore(redis, prefix=keys.prefix, queue=keys.queue, partition=keys.partition).tidy()  # as workers do about once a minute
    final = seen.left(seen.ask, redis, queues, quiet=calm >= 3)
    calendar, final.dates = seen.calendar_left(), seen.dates_left()
    redis.close()
    if stage.second_site is not None:
        from django_delayq.models import Site

        final.site, final.sites = Site.objects.values_list("site", flat=True).get(), _sites()
    (stage.folder / FINAL).write_bytes(pickle.dumps((final, calendar)))
    history = _read(stage.folder, final, calendar)
    history.dated_by_hosts = stage.kind == "sqlite"
    return history


def _turned_off(stage: Stage) -> bool:
    """Turns off every schedule, also what a worker has just found in its code. False: the database was away, or a schedule was retired
    meanwhile; once more.
    """
    from django.db import DatabaseError, InterfaceError, connection

    from django_delayq.exceptions import ConfigError
    from django_delayq.models import Periodic
    from django_delayq.periodic import schedules

    try:
        connection.close_if_unusable_or_obsolete()
        in_force = Periodic.objects.filter(enabled=True, retired_at=None)
        for name in list(in_force.values_list("name", flat=True)) if stage.schedules else ():
            schedules.turn_off(name, "campaign", "the load is over")
    except (ConfigError, DatabaseError, InterfaceError):
        time.sleep(0.2)
        return False
    return True


def _database() -> str:
    found = any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or shutil.which("initdb")
    return "postgres" if found and find_spec("psycopg") is not None else "sqlite"
