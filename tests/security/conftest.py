from __future__ import annotations

from tests.mirror.conftest import lost_reply, orders
from tests.store.conftest import board, link
from tests.worker.conftest import shop

__all__ = ["board", "link", "lost_reply", "orders", "shop"]
