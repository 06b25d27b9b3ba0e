"""The samples that Prometheus reads from a URL, parsed by the parser of its own client."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


class Scraped:
    def __init__(self, text: str) -> None:
        self.samples: list[tuple[str, Mapping[str, str], float]] = [
            (sample.name, sample.labels, sample.value) for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def of(self, name: str, **labels: str) -> float | None:
        """Returns the sum of the samples with this name and these labels, as `sum(name{…})`. Returns None if there are no samples."""
        found = [value for told, has, value in self.samples if told == name and labels.items() <= has.items()]
        return sum(found) if found else None
