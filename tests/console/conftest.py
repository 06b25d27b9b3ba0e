from __future__ import annotations

from tests.admin.conftest import orders, staff
from tests.management.conftest import run

__all__ = ["orders", "run", "staff"]
