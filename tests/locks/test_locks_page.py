"""The code of docs/more/locks.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest

import django_delayq as delayq

PAGE = (Path(__file__).parents[2] / "docs" / "more" / "locks.md").read_text()


@pytest.mark.django_db(transaction=True)
def test_the_fence_is_written_under_the_lock() -> None:
    code = re.findall(r"```python\n(.+?)```", PAGE, flags=re.DOTALL)[0]
    order, fences = mock.Mock(), []
    for _ in range(2):
        exec(code, {"delayq": delayq, "ask_partner": lambda order: 7, "order": 42, "Order": order})
        written = order.objects.filter.return_value.update.call_args.kwargs
        assert written["price"] == 7
        assert order.objects.filter.call_args.kwargs == {"pk": 42, "fence__lt": written["fence"]}
        fences.append(written["fence"])
    assert fences[0] < fences[1]
