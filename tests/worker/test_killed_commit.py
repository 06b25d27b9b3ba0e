"""A process is killed between its commit and the hook of that: a worker carries out what it has committed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.stage import ROOT
from tests.worker.conftest import Shop, eventually
from tests.worker.test_restore import Site

PAY = """
import os, signal
import django
django.setup()
from django.db import transaction
import django_delayq as delayq
from tests.app.shop.tasks import write_down
delayq.schedule(write_down, 7, 0.0, delay="1h", key="n:7")
delayq.schedule(write_down, 8, 0.0, delay="1h", key="n:8")
with transaction.atomic():
    transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert delayq.cancel(key="n:7", queue="default", reason="paid", at_commit=True) == "pending"
    assert delayq.reschedule(key="n:8", queue="default", delay=0, at_commit=True) == "pending"
"""


@pytest.mark.slow
def test_a_change_is_carried_out_though_its_process_was_killed_between_commit_and_hook(shop: Shop, own_redis) -> None:
    site = Site(shop, own_redis(save=""))
    died = subprocess.run([sys.executable, "-c", PAY], cwd=ROOT, env={**os.environ, **shop.project}, check=False)
    assert died.returncode == -signal.SIGKILL
    assert site.states() == {"scheduled": 2}
    site.work()
    eventually(lambda: site.states() == {"cancelled": 1, "succeeded": 1})
    assert site.rows("SELECT error FROM delayq_job WHERE state = 'cancelled'") == [("paid",)]
    assert site.rows("SELECT count(*) FROM delayq_commit_request") == [(0,)]
    assert site.runs().keys() == {8}
