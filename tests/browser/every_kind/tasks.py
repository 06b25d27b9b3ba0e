"""Nothing here does anything."""

from __future__ import annotations

from typing import Any

import django_delayq as delayq


@delayq.task(name="shop.refunds.refund", queue="orders", sensitive=["iban"])
def refund(
    order_id: int,
    customer: str,
    amount: float,
    iban: str,
    *lines: int,
    partial: bool = False,
    note: str | None = None,
    address: dict[str, Any] | None = None,
    anything=3,
    a_name_so_long_that_it_has_no_place_beside_its_annotation_on_a_phone: list[str] | None = None,
    **others: str,
) -> None:
    """Pays something back."""
