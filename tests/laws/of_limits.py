"""Laws of rates, judged by the claims of jobs with a rate, at the times of Redis's clock; and of fair words, by the order of claims."""

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


@law(Sees.CLAIMS)
def between_two_turns_of_a_word_no_other_has_two(history: History) -> Findings:
    """While a job of a word waits, every other word of its band has at most one turn for each of its own."""
    others: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for turn in history.turns:
        if turn.waited:
            for word, count in others[turn.band, turn.word].items():
                if count > 1:
                    yield turn.job, f"of the word {turn.word!r} waited for {count} jobs of {word!r}"
        others[turn.band, turn.word] = {}
        for (band, word), counts in others.items():
            if band == turn.band and word != turn.word:
                counts[turn.word] = counts.get(turn.word, 0) + 1


@law(Sees.CLAIMS)
def no_thread_idles_beside_due_jobs_of_fair_words(history: History) -> Findings:
    """A claim gets as many jobs as it wants, if so many are due, or the worker claims again at once."""
    for one in history.fillings:
        if one.got < min(one.want, one.due) and not one.again:
            yield one.nonce, f"got {one.got} jobs for {one.want} threads, and {one.due} were due"
