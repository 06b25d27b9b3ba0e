"""The table of signs matches the tables that it refers to."""

import re
from pathlib import Path

import django_delayq
from django_delayq.console.health import LABELS, MEASURES
from django_delayq.contrib.prometheus.metrics import OF_QUEUES
from django_delayq.findings import KINDS

REMEDIES = Path(django_delayq.__file__).parent / "templates/admin/delayq/queue/remedies.html"


def test_every_measure_belongs_to_a_sign_and_names_findings_and_metrics_that_exist():
    assert {one.sign for one in MEASURES.values()} == set(LABELS)
    assert {one.finding for one in MEASURES.values()} - {""} <= set(KINDS)
    assert {one.metric for one in MEASURES.values()} - {""} <= set(OF_QUEUES)


def test_every_sign_has_a_remedy():
    assert set(re.findall(r'<section id="(\w+)">', REMEDIES.read_text())) == set(LABELS)


def test_doctor_reports_a_measure_from_its_highest_limit():
    lag, unserved = MEASURES["lag"], MEASURES["unserved"]
    assert [(lag.level(value), lag.is_finding(value)) for value in (9, 10, 60)] == [("well", False), ("late", False), ("bad", True)]
    assert [(unserved.level(value), unserved.is_finding(value)) for value in (0, 1)] == [("well", False), ("late", True)]
