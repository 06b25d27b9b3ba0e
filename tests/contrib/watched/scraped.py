"""Reads exported metrics with Prometheus' own parser."""

from __future__ import annotations

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.worker.conftest import eventually

OF_DIVIDED = {"delayq_queue_partitions", "delayq_queue_partitions_away"}  # told of queues with partitions only


class Scraped(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """Samples by name and labels. A duplicate of a name with labels is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        for family in self.families.values():
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self, f"{sample.name} {sample.labels} comes twice"
                self[key] = sample.value

    def of(self, name: str, **labels: str) -> float | None:
        """Returns the sample with exactly these labels."""
        return self.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """Returns the sum of the samples that have these labels, and possibly others."""
        return sum(value for (other, its), value in self.items() if other == name and its >= set(labels.items()))


def ask(port: int, path: str = "metrics") -> tuple[int, str]:
    """Returns the status and the text. The status is 0 if there is no response."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def scrape(port: int) -> Scraped:
    """Returns the metrics of a worker when it answers."""
    status, text = eventually(lambda: (got := ask(port))[0] and got)
    assert status == 200, text
    return Scraped(text)
