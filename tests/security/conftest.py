from __future__ import annotations

from tests.commands.conftest import run
from tests.mirror.conftest import orders
from tests.store.conftest import board, link
from tests.worker.conftest import shop

__all__ = ["board", "link", "orders", "run", "shop"]
