"""The hours of a fleet: the recorded cost of each, and its cost when the rule of day 0 decides in the replay.

The rule of day 0 is the queue rule with the fleet's settings: it needs no model, and no promotion changes it. The
replay begins with the recorded fleet where another kind of policy begins to decide, so that no policy pays for the
fleet that the one before it left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.registry import policy_from_name
from domain.rules.queue_rule import RuleSetting
from domain.units import DAY_S, HOUR_S, MINUTE_S
from trainer.learning.loss_watch import LossResult, loss_watch
from trainer.learning.minutes import DecidedMinute, jobs_of, span_of
from trainer.learning.self_tuning import Simulate, by_rule, names_rule, simulate, under
from trainer.learning.subject import Learner

DAY_ZERO_SEED: Final = 2_900_000_000
"""Boot seed of the replay; training, tuning and judgement use others."""
LEAST_MINUTES: Final = 55
"""Of an hour, recorded and decided by policies of one kind."""
HORIZON_WITHIN: Final = 1e-5
"""Share by which a recorded horizon may differ from a setting: names have six digits."""
RULE, EARLIER, CHANGED = 0, 1, 2
"""Kinds of minutes: the rule of day 0 decided, a policy that was promoted before, or the watched one."""

KindOf = Callable[[DecidedMinute], int | None]
"""Returns the kind of the policy that decided at the end of a minute; None leaves the minute out."""


@dataclass(frozen=True, slots=True)
class LivedHours:
    """Dollars of hours, oldest first: recorded, and replayed under the rule of day 0. kind: of each hour."""

    lived: NDArray[np.float64]
    rule: NDArray[np.float64]
    kind: NDArray[np.int64]

    def of(self, *kinds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return recorded and replayed dollars of the hours of some kinds."""
        chosen = np.isin(self.kind, kinds)
        return self.lived[chosen], self.rule[chosen]


def decided_by(minute: DecidedMinute, setting: RuleSetting) -> bool:
    """Return whether the queue rule with this horizon and idle time decided at the end of a minute."""
    if not names_rule(minute.policy) or minute.under.idle_s not in (None, setting.idle_s):
        return False
    horizon_s = getattr(policy_from_name(minute.policy), "horizon_s", None)
    return horizon_s is not None and math.isclose(horizon_s, setting.horizon_s, rel_tol=HORIZON_WITHIN)


def loss_of(
    learner: Learner,
    day_0: RuleSetting,
    since_s: float,
    *,
    play: Simulate = simulate,
    changed_s: float | None = None,
) -> LossResult:
    """Return whether the hours of a tuned rule since a moment (epoch seconds) cost surely more than the rule of day 0.

    changed_s: when the rule of day 0 decided last, before that moment or None for it. The day before it, as far as that
    rule decided in it, shows by how much the replay errs.
    """
    changed_s = since_s if changed_s is None else changed_s

    def kind_of(minute: DecidedMinute) -> int | None:
        if minute.end_s >= since_s:
            return CHANGED if by_rule(minute) else None
        return RULE if changed_s - DAY_S <= minute.end_s < changed_s and decided_by(minute, day_0) else None

    hours = lived_hours(learner, day_0, kind_of, since_s, play=play)
    return loss_watch(*hours.of(CHANGED), hours.of(RULE))


def lived_hours(
    learner: Learner, rule: RuleSetting, kind_of: KindOf, origin_s: float, *, play: Simulate = simulate
) -> LivedHours:
    """Return the recorded hours; one whose minutes are of several kinds is left out.

    rule: of day 0. origin_s: a begin of an hour, epoch seconds.
    """
    job_core_s = learner.recorded.job_core_s
    costs: dict[tuple[int, int], list[float]] = {}
    # By hour and kind.
    for stretch in learner.recorded.stretches if job_core_s is not None else ():
        jobs = jobs_of(stretch)
        for kind, minutes in _parts(stretch, kind_of):
            span = span_of("hours", minutes, job_core_s or 0.0, jobs=jobs)
            loop, ours = under(learner, span, rule)
            cost = play(loop, learner.config, ours, DAY_ZERO_SEED)
            hours = (span.start_s + MINUTE_S * np.arange(span.steps) - origin_s) // HOUR_S
            for hour in np.unique(hours).astype(int).tolist():
                own = hours == hour
                held = costs.setdefault((hour, kind), [0.0, 0.0, 0.0])
                held[0] += float((span.rent + span.penalty)[own].sum())
                held[1] += float(cost[own].sum())
                held[2] += float(own.sum())
    rows = [(*found[:2], kind) for (_, kind), found in sorted(costs.items()) if found[2] >= LEAST_MINUTES]
    whole = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return LivedHours(whole[:, 0], whole[:, 1], whole[:, 2].astype(np.int64))


def _parts(stretch: Sequence[DecidedMinute], kind_of: KindOf) -> Iterator[tuple[int, Sequence[DecidedMinute]]]:
    """Yield the parts of a stretch that policies of one kind decided, each with the minute at its end."""
    kinds = [kind_of(minute) for minute in stretch[:-1]]
    begin = 0
    for place in range(1, len(kinds) + 1):
        if place == len(kinds) or kinds[place] != kinds[begin]:
            kind = kinds[begin] if kinds else None
            if kind is not None:
                yield kind, stretch[begin : place + 1]
            begin = place
