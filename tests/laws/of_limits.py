"""Laws of rates, judged by the claims of jobs with a rate, at the times of Redis's clock."""

from __future__ import annotations

from collections import defaultdict

from tests.laws.history import History, RatedClaim, Sees
from tests.laws.law import Findings, law


@law(Sees.CLAIMS)
def no_rate_is_exceeded(history: History) -> Findings:
    """In no window does a rate have more claims than its burst and the tokens of that time. The clock counts whole ms. Claims of
    different epochs do not count together, because a loss of Redis allows one more burst. If a rate was changed, the faster one counts.
    """
    by_rate: dict[tuple[str, str], list[RatedClaim]] = defaultdict(list)
    for claim in history.claims:
        by_rate[claim.epoch, claim.rate].append(claim)
    for (_, rate), claims in by_rate.items():
        claims.sort(key=lambda claim: claim.at_ms)
        each, burst = min(one.pace.each_ms for one in claims), max(one.pace.burst for one in claims)
        for first, start in enumerate(claims):
            for number, end in enumerate(claims[first:], 1):
                window = end.at_ms - start.at_ms
                if number > burst + (window + 1) / each:
                    yield end.job, f"is claim {number} of the rate {rate!r} in {window} ms; burst {burst}, a token each {each:g} ms"
                    break
