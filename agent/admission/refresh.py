"""Futures that an answer hangs on are computed anew before it is given: old ones would refuse wrongly."""

from __future__ import annotations

from agent.admission.book import Book
from agent.admission.decision import asked_at, binding, slack_of
from agent.admission.futures import Curves
from agent.admission.horizons import kappas_of
from agent.admission.rules import PolicyKind
from domain.rules.admission.freshness import OVER, PART, UNDER, cores_per_variance


def settle(book: Book, new: Curves, now: float, *, observed: bool) -> int:
    """Compute futures, those in most doubt first, until the rule would say the same without doubt; return how many.

    new, observed: the newcomer, as `judge` takes them.
    """
    rules = book.rules
    if rules.policy is PolicyKind.ZEROTH or not len(book):
        return 0
    newcomer, kappas, renewed = new[0], kappas_of(rules, book.horizons_h), 0
    marginal_cores = rules.marginal_cores if observed else 0.0
    while True:
        found = asked_at(book, kappas, book.sums, newcomer, marginal_cores)
        together = book.sums + newcomer
        slack = slack_of(rules, kappas, together)
        k = found if found >= 0 else binding(book, slack, together, newcomer.mean < marginal_cores)
        room = rules.limit_cores - float(together.mean[k])
        weight = cores_per_variance(room, float(together.variance[k]), float(kappas[k]))
        doubts = book.doubts(k, weight, now)
        off = float(doubts.sum())
        more = OVER * off if found >= 0 else -UNDER * off
        if off == 0.0 or (asked_at(book, kappas, book.sums, newcomer, marginal_cores, more) >= 0) == (found >= 0):
            return renewed
        renewed += book.renew(doubts > PART * doubts.max(), now)
