from __future__ import annotations

from tests.admin.conftest import orders, staff

__all__ = ["orders", "staff"]
