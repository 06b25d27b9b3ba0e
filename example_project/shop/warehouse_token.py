"""The gateway token of the warehouse, for its queue and three verbs."""

import json
import os
from contextlib import contextmanager
from io import StringIO

from django.core.management import call_command

from shop.fulfilment import WAREHOUSE


@contextmanager
def warehouse_token():
    """A token for the duration of the block. Tokens are not stored, so each start creates one."""
    name = f"warehouse-{os.getpid()}"
    told = StringIO()
    words = ["--queues", WAREHOUSE, "--verbs", "pull,ack,retry", "--per-minute", "6000", "--expires", "30d", "--json"]
    call_command("delayq_gateway", "make", name, *words, stdout=told, stderr=StringIO())
    try:
        yield json.loads(told.getvalue())["token"]
    finally:
        call_command("delayq_gateway", "revoke", name, stdout=StringIO())
