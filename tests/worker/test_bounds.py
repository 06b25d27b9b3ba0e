"""Workers at the limit of events."""

from __future__ import annotations

from tests.worker.conftest import Shop, eventually


def test_at_twice_the_limit_of_events_a_worker_claims_no_more_until_the_mirror_has_come(shop: Shop) -> None:
    shop.settings = {"MIRROR_MAX_EVENTS": 1000}
    jobs = 1500
    shop.put_many("doze", [(number, 0.0) for number in range(jobs)])

    def told() -> int:
        return sum(len(entry.items) for entry in shop.events())

    shop.work("--threads", "4")
    eventually(lambda: told() >= 2000 and not shop.leases())
    assert shop.left() > jobs // 4, "the rest waits"
    assert told() <= 2 * 1000 + 4 * 200, "and what was held when the limit was reached"
