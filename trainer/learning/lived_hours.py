"""The hours of a fleet: the recorded cost of each, and its cost when the rule of day 0 decides in the replay.

The rule of day 0 is the queue rule with the fleet's settings: it needs no model, and no promotion changes it. The
replay begins with the recorded fleet where another kind of policy begins to decide, so that no policy pays for the
fleet that the one before it left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.registry import policy_from_name
from agent.settings import load_settings
from domain.rules.queue_rule import RuleSetting
from domain.units import HOUR_S, MINUTE_S
from trainer.learning.fidelity import replayed
from trainer.learning.minutes import DecidedMinute, Record, jobs_of, span_of
from trainer.learning.self_tuning import names_rule, under
from trainer.learning.subject import Learner

DAY_ZERO_SEED: Final = 2_900_000_000
"""Boot seeds of the replay; training, tuning and judgement use others."""
LEAST_MINUTES: Final = 55
"""Of an hour, recorded and decided by policies of one kind."""
RULE, EARLIER, CHANGED = 0, 1, 2
"""Kinds of minutes: the rule of day 0 decided, a policy that was promoted before, or the watched one."""


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


def day_zero(fleet: str, environ: Mapping[str, str]) -> RuleSetting | None:
    """Return the rule that the settings have for a fleet, None where they do not have the fleet."""
    settings = load_settings(environ).fleets
    if fleet not in settings:
        return None
    own = settings[fleet]
    return RuleSetting(own.rule_horizon_s, own.idle_s, own.queue_rule.job_core_s)


def is_rule(policy: str, setting: RuleSetting) -> bool:
    """Return whether a recorded policy is the queue rule with the horizon of a setting."""
    return names_rule(policy) and getattr(policy_from_name(policy), "horizon_s", None) == setting.horizon_s


def lived_hours(
    learner: Learner,
    recorded: Record,
    rule: RuleSetting,
    kind_of: Callable[[float, str], int | None],
    origin_s: float,
    seeds: int = 1,
    spread: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]] = map,
) -> LivedHours:
    """Return the recorded hours; one whose minutes are of several kinds is left out.

    rule: of day 0. kind_of: of a minute, by its begin (epoch seconds) and its policy; None leaves
    it out. origin_s: a begin of an hour. seeds: boot seeds. spread: maps a function over items.
    """
    job_core_s = recorded.job_core_s
    costs: dict[tuple[int, int], list[float]] = {}
    # By hour and kind.
    for stretch in recorded.stretches if job_core_s is not None else ():
        jobs = jobs_of(stretch)
        for kind, minutes in _parts(stretch, kind_of):
            span = span_of("hours", minutes, job_core_s or 0.0, jobs=jobs)
            loop, ours = under(learner, span, rule)
            runs = list(spread(replayed, [(loop, learner.config, ours, DAY_ZERO_SEED + seed) for seed in range(seeds)]))
            cost = np.mean([run.rent + run.penalty for run in runs], axis=0)
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


def _parts(
    stretch: Sequence[DecidedMinute], kind_of: Callable[[float, str], int | None]
) -> Iterator[tuple[int, Sequence[DecidedMinute]]]:
    """Yield the parts of a stretch that policies of one kind decided, each with the minute at its end."""
    kinds = [kind_of(minute.end_s, minute.policy) for minute in stretch[:-1]]
    begin = 0
    for place in range(1, len(kinds) + 1):
        if place == len(kinds) or kinds[place] != kinds[begin]:
            kind = kinds[begin] if kinds else None
            if kind is not None:
                yield kind, stretch[begin : place + 1]
            begin = place
