"""The names in the dashboard, the alerts and the manifests exist."""

from __future__ import annotations

import argparse
import configparser
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq import clock, conf, durations
from django_delayq.console import health
from django_delayq.contrib.prometheus.metrics import METRICS, Metric
from django_delayq.management.commands.delayq_worker import Command
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.worker.supervisor import worker_beat
from django_delayq.worker.supervisor.worker_beat import LATE, Beat

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "howto" / "monitor.md").read_text()
DASHBOARD = json.loads((DOCS / "monitoring" / "grafana.json").read_text())
ALERTS = (DOCS / "monitoring" / "alerts.yml").read_text()
KEDA = (DOCS / "deploy" / "keda.yml").read_text()
MANIFESTS = sorted((DOCS / "deploy").glob("*.yml"))
SERIES = {
    series
    for name, metric in METRICS.items()
    for series in ([f"{name}{end}" for end in ("_bucket", "_sum", "_count")] if metric.kind == "histogram" else [name])
}


def named(expression: str) -> set[str]:
    """Returns the metrics of a query."""
    return set(re.findall(r"\bdelayq_\w+", expression))


def labels_of(expression: str) -> Iterator[tuple[str, str]]:
    """Returns the metrics, each with the labels that a query uses to select samples."""
    for name, chosen in re.findall(r"\b(delayq_\w+)\{([^}]*)\}", expression):
        for label in re.findall(r"(\w+)\s*[=!]", chosen):
            yield name, label


def metric_of(series: str) -> Metric:
    return METRICS.get(series) or METRICS[re.sub(r"_(bucket|sum|count)$", "", series)]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    variables = [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return [*variables, *(target["expr"] for panel in panels() for target in panel["targets"])]


def rules() -> list[dict[str, str]]:
    """Parses the parts of the rules that these tests need: name, expression, severity and annotations."""
    found = []
    for text in re.split(r"^      - alert: ", ALERTS, flags=re.MULTILINE)[1:]:
        name, _, rest = text.partition("\n")
        folded = re.search(r"^        expr: >-\n((?:          .*\n)+)", rest, re.MULTILINE)
        plain = re.search(r"^        expr: (?!>-)(.+)$", rest, re.MULTILINE)
        expression = " ".join(folded[1].split()) if folded else plain[1] if plain else ""
        said = dict(re.findall(r"^          (\w+): (.+)$", rest, re.MULTILINE))
        severity = re.search(r"^        labels: \{severity: (\w+)\}$", rest, re.MULTILINE)
        found.append({"name": name, "expr": expression, "severity": severity[1] if severity else "", **said})
    return found


def test_names_follow_the_conventions() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"delayq_[a-z_]+", name)
        assert metric.meaning.endswith("."), name
    assert all(name.endswith("_seconds") for name, metric in METRICS.items() if metric.kind == "histogram")


def test_the_dashboard_asks_for_what_there_is() -> None:
    assert len(queries()) > 30
    for query in queries():
        assert named(query), query
        assert named(query) <= SERIES, query
        for name, label in labels_of(query):
            assert label in (*metric_of(name).labels, "le"), f"{name} has no label {label}"


def test_the_dashboard_is_whole() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert {panel["datasource"]["uid"] for panel in panels()} == {"${datasource}"}
    used = {name for query in queries() for name in re.findall(r"\$(\w+)", query)} - {"__rate_interval"}
    assert used | {"datasource"} == variables
    counters = {name for name, metric in METRICS.items() if metric.kind == "counter"}
    for query in queries():
        for name in named(query) & counters:
            assert re.search(rf"(rate|increase)\({name}", query), f"{name} only rises: {query}"


def test_every_alert_asks_for_what_there_is_and_says_what_to_do() -> None:
    found = rules()
    assert len(found) == ALERTS.count("- alert:") > 15
    for rule in found:
        assert named(rule["expr"]), rule
        assert named(rule["expr"]) <= SERIES, rule
        for name, label in labels_of(rule["expr"]):
            assert label in metric_of(name).labels, rule
        assert rule["severity"] in ("warning", "critical"), rule
        assert rule["summary"].rstrip('"').endswith("."), rule
        assert rule["runbook"].endswith("."), rule
        assert rule["expr"].count("(") == rule["expr"].count(")"), rule
    told = {name for rule in found for name in named(rule["expr"])}
    assert told >= {
        "delayq_oldest_late_seconds",
        "delayq_queue_workers",
        "delayq_outbox_oldest_seconds",
        "delayq_mirror_lag_seconds",
        "delayq_jobs_failed_lately",
        "delayq_redis_evicts",
    }


def test_a_label_that_an_alert_shows_is_one_that_its_query_keeps() -> None:
    for rule in rules():
        kept = {word.strip() for words in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for word in words.split(",")}
        assert set(re.findall(r"\$labels\.(\w+)", rule["summary"])) <= kept, rule


def test_the_scaler_asks_for_due_jobs() -> None:
    query = re.search(r"^        query: (.+)$", KEDA, re.MULTILINE)
    assert query is not None
    assert named(query[1]) == {"delayq_jobs_due"}
    assert "    name: shop-worker\n" in KEDA
    assert "  name: shop-worker\n" in (DOCS / "deploy" / "kubernetes.yml").read_text()


# what is deployed


def commands() -> list[tuple[str, list[str]]]:
    """Returns the files that start a worker, with the options of the command."""
    found = []
    for path in sorted((DOCS / "deploy").iterdir()):
        for line in path.read_text().splitlines():
            if "delayq_worker" in line:
                words = json.loads(line[line.index("[") :]) if line.endswith("]") else shlex.split(line)
                found.append((path.name, words[words.index("delayq_worker") + 1 :]))
    return found


def test_there_are_workers_in_each_kind_of_deployment() -> None:
    assert {name for name, _ in commands()} == {"Dockerfile", "Procfile", "compose.yml", "delayq.service", "kubernetes.yml"}


@pytest.mark.parametrize(("where", "words"), commands())
def test_the_options_of_a_deployed_worker_exist(where: str, words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    Command().add_arguments(parser)
    options = parser.parse_args(words)
    if options.metrics_queues:
        assert options.health_port is not None
        assert options.roles != "move"


def test_a_worker_is_given_its_grace_and_a_minute() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(DOCS / "deploy" / "delayq.service")
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == ("notify", "main", "mixed")
    assert int(service["WatchdogSec"]) >= 30
    assert int(service["TimeoutStopSec"]) >= grace("delayq.service") + 60
    assert int(re.findall(r"stop_grace_period: (\d+)s", (DOCS / "deploy" / "compose.yml").read_text())[0]) >= grace("compose.yml") + 60
    given = [int(seconds) for seconds in re.findall(r"terminationGracePeriodSeconds: (\d+)", manifest("kubernetes.yml"))]
    assert given[0] >= grace("kubernetes.yml") + 60


def grace(where: str) -> float:
    parser = argparse.ArgumentParser()
    Command().add_arguments(parser)
    return durations.seconds(next(parser.parse_args(words).grace for name, words in commands() if name == where))


def manifest(name: str) -> str:
    return (DOCS / "deploy" / name).read_text()


def test_probes_ask_for_what_is_answered() -> None:
    text = manifest("kubernetes.yml")
    assert set(re.findall(r"path: (/\w+)", text)) == {"/health", "/ready"}
    for probe in re.findall(r"(livenessProbe|startupProbe):\n\s+httpGet: \{path: (\S+),", text):
        assert probe[1] == "/health", "a worker that waits for Redis is not restarted"
    ports = set(re.findall(r"containerPort: (\d+)", text))
    assert ports == set(re.findall(r'"--health-port", "(\d+)"', text)) == set(re.findall(r'prometheus.io/port: "(\d+)"', text))


@pytest.mark.parametrize("page", ["howto/deploy.md", "howto/monitor.md", "reference/worker.md"])
def test_the_pages_say_for_how_long_a_worker_is_ready_without_redis(page: str) -> None:
    paragraph = next(text for text in (DOCS / page).read_text().split("\n\n") if "/ready` also fails" in text or "`/ready`\n" in text)
    assert f"{LATE:.0f} seconds" in " ".join(paragraph.split())


def test_a_worker_is_ready_until_15_seconds_after_its_last_answer_from_redis(
    delayq_redis: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(worker_beat, "clock", SimpleNamespace(monotonic=lambda: now[0]))
    beat = Beat(WorkerRegistry(stores.link, prefix=conf.get().prefix), "w/1", lambda: {"started": clock.wall_ms()}, lambda *_: None)
    assert not beat.reached(), "a new worker is not ready before its first answer"
    beat.poll()
    now[0] += 14.9
    assert beat.reached(), "a failover takes less"
    now[0] += 0.1
    assert not beat.reached()


@pytest.mark.parametrize("path", [*MANIFESTS, DOCS / "monitoring" / "alerts.yml"], ids=lambda path: path.name)
def test_yaml_is_yaml(path: Path) -> None:
    text = path.read_text()
    assert "\t" not in text
    assert not [line for line in text.splitlines() if (len(line) - len(line.lstrip(" "))) % 2], "an odd indentation"
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with what builds the documentation")
    read = [one for one in yaml.safe_load_all(text) if one]
    assert read
    if path.name == "alerts.yml":
        assert [(rule["alert"], rule["expr"]) for rule in read[0]["groups"][0]["rules"]] == [
            (rule["name"], rule["expr"]) for rule in rules()
        ]


@pytest.mark.parametrize("path", sorted([*(DOCS / "deploy").iterdir(), *(DOCS / "monitoring").iterdir()]), ids=lambda path: path.name)
def test_every_file_is_shown_or_offered(path: Path) -> None:
    pages = PAGE + (DOCS / "howto" / "deploy.md").read_text()
    assert f"../{path.parent.name}/{path.name}" in pages


@pytest.mark.parametrize("queues", [1, 30])
def test_it_costs_redis_as_many_round_trips_as_the_page_says(delayq_redis, settings, monkeypatch, queues: int) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {f"queue{number}": {} for number in range(queues)}}
    health.redis_samples()  # makes the connection
    trips = 0

    send = Link._send

    def counted(self: Link, commands: Any) -> Any:
        nonlocal trips
        trips += 1
        return send(self, commands)

    monkeypatch.setattr(Link, "_send", counted)
    health.redis_samples()
    assert trips == 8
    assert "takes eight round trips to Redis" in PAGE
