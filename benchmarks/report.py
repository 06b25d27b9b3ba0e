"""Results as Markdown tables and as a chart; `python -m benchmarks.report` writes them into the documentation.

    python -m benchmarks.report [--results .bench/results.json]

Also keeps what it has published in benchmarks/results.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import metrics
from benchmarks.metrics import Column, Metric
from benchmarks.systems import ROOT

OWN = "delayq"
PAGE = ROOT / "docs" / "topics" / "benchmarks.md"
CHARTS = ROOT / "docs" / "_static"
RESULTS, PUBLISHED = ROOT / ".bench" / "results.json", ROOT / "benchmarks" / "results.json"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
BARS = (("noop", "one"), ("lateness", "p99"), ("burst", "p99"), ("noop", "life_us"))


def main() -> None:
    """Replaces the text between the marks of docs/topics/benchmarks.md, and the chart."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.splitlines()[0])
    options.add_argument("--results", type=Path, default=RESULTS)
    document = json.loads(options.parse_args().results.read_text())
    PUBLISHED.write_text(json.dumps(document, indent=1) + "\n")
    head, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{head.rstrip()}\n\n{BEGIN}\n\n## Figures\n\n{figures(document)}\n{END}{rest.partition(END)[2] or chr(10)}")
    CHARTS.mkdir(exist_ok=True)
    (CHARTS / "benchmarks.svg").write_text(chart(document))


def figures(document: Mapping[str, Any]) -> str:
    """The whole of it in Markdown."""
    ran_on = document["ran_on"]
    settings = ", ".join(f"`{name} {value}`" for name, value in ran_on["settings"].items())
    ran = (
        f"Measured on {ran_on['date']} on {ran_on['machine']} with Python {ran_on['python']}. "
        f"The servers, the workers and the benchmark itself share {ran_on['cores']} cores. {ran_on['server']} runs with {settings}."
    )
    parts = [ran, "![Bar chart of each system's jobs per second, lateness, burst and Redis CPU](../_static/benchmarks.svg)"]
    for name in metrics.NAMES:
        if name in document["metrics"]:
            metric = metrics.load(name)
            parts += [f"### {metric.title}", metric.text, table(metric, document)]
    parts += ["### Versions and settings", systems(document)]
    return "\n\n".join(parts) + "\n"


def table(metric: Metric, document: Mapping[str, Any]) -> str:
    """One metric: a row per system, ours first and bold. Figures of others show how many times better ours is."""
    taken: Mapping[str, Any] = document["metrics"][metric.name]
    columns = {
        name: column
        for name, column in metric.columns.items()
        if any(row.get("median", {}).get(name) is not None for row in taken.values())
    }
    if not columns:
        columns = dict(list(metric.columns.items())[:1])
    heads = [column.title + (f", {column.unit}" if column.unit else "") for column in columns.values()]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    own = taken.get(OWN, {}).get("median", {})
    for name in sorted(taken, key=lambda name: name != OWN):
        row = taken[name]
        title = _title(name, document)
        if "failed" in row:
            lines.append(f"| {title} | " + " | ".join(["not supported", *[""] * (len(heads) - 1)]) + " |")
            continue
        cells = [_cell(row["median"].get(key), column, own.get(key), name) for key, column in columns.items()]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    if any(column.reach for column in columns.values()) and OWN in taken:
        lines.append("| *target* | " + " | ".join(column.reach for column in columns.values()) + " |")
    scaled = {_title(name, document): row["size"] for name, row in taken.items() if row.get("size", 1) != 1}
    missed = [f"{_title(name, document)}: {row['failed'][:200]}" for name, row in taken.items() if "failed" in row]
    if scaled:
        sizes = sorted({f"{size:g}" for size in scaled.values()})
        names = "all" if len(scaled) == len(taken) else ", ".join(scaled)
        missed.insert(0, f"Measured with a fraction of the number of jobs above: {' or '.join(sizes)} ({names}).")
    return "\n".join([*lines, *([""] if missed else []), *(f"- {text}" for text in missed)])


def systems(document: Mapping[str, Any]) -> str:
    """The systems that were measured, with versions and settings."""
    lines = ["| | version | settings | scheduled jobs wait in | bulk call |", "|---|---|---|---|---|"]
    for name, what in document["systems"].items():
        if "missing" in what:
            lines.append(f"| {name} | | could not be installed: {what['missing']} | | |")
        else:
            lines.append(f"| {what['name']} | {what['version']} | {what['settings']} | {what['waits_in']} | {what['many_by']} |")
    return "\n".join(lines)


def chart(document: Mapping[str, Any]) -> str:
    """Bars of a few figures, each system in each; a logarithmic scale, since they lie far apart."""
    blocks, top = [], 10
    for metric_name, key in BARS:
        metric = metrics.load(metric_name)
        rows = [
            (_title(name, document), row["median"][key], name == OWN)
            for name, row in document["metrics"].get(metric_name, {}).items()
            if row.get("median", {}).get(key)
        ]
        column = metric.columns[key]
        rows.sort(key=lambda row: row[1], reverse=column.better == "more")
        if rows:
            blocks.append(_block(metric, column, rows, top))
            top += 44 + 20 * len(rows)
    style = "text{font:13px system-ui,sans-serif;fill:currentColor}.t{font-weight:600}.b{fill:#8a93a3}.o{fill:#0c7c59}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {top}" role="img" color="#333">'
        f"<title>django-delayq beside other queues</title><style>{style}</style>{''.join(blocks)}</svg>\n"
    )


def _block(metric: Metric, column: Column, rows: Sequence[tuple[str, float, bool]], top: int) -> str:
    from math import log10

    values = [value for _, value, _ in rows]
    low, high = log10(min(values)) - 0.3, log10(max(values))
    title = f"{metric.title}: {column.title}{', ' + column.unit if column.unit else ''} ({column.better} is better; logarithmic)"
    parts = [f'<text class="t" x="10" y="{top + 14}">{escape(title)}</text>']
    for number, (name, value, own) in enumerate(rows):
        y = top + 26 + number * 20
        width = 6 + 440 * (log10(value) - low) / max(high - low, 0.1)
        parts += [
            f'<text x="140" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{"o" if own else "b"}" x="148" y="{y + 1}" width="{width:.0f}" height="14" rx="2"/>',
            f'<text x="{154 + width:.0f}" y="{y + 12}">{_number(value, column)}</text>',
        ]
    return "".join(parts)


def _title(name: str, document: Mapping[str, Any]) -> str:
    return str(document.get("systems", {}).get(name, {}).get("name", name))


def _cell(value: float | None, column: Column, own: float | None, name: str) -> str:
    if value is None:
        return ""
    text = _number(value, column)
    if name == OWN:
        return f"**{text}**"
    if not own or not value or not column.better:
        return text
    times = own / value if column.better == "more" else value / own
    return f"{text} ({times:.1f}×)" if times < 20 else f"{text} ({times:.0f}×)"


def _number(value: float, column: Column) -> str:
    return f"{value:,.{column.digits if abs(value) < 1000 else 0}f}"


if __name__ == "__main__":
    main()
