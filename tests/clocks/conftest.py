from __future__ import annotations

from tests.targets.conftest import host

__all__ = ["host"]
