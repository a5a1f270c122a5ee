"""The hours of a fleet: the recorded cost of each, and its cost when the rule of day 0 decides in the replay.

The rule of day 0 is the queue rule with the fleet's settings: it needs no model, and no promotion changes it. The
replay begins with the recorded fleet where another kind of policy begins to decide, so that no policy pays for the
fleet that the one before it left.

The record does not know which VM has which job. Where long jobs hold the VMs, a replay can therefore cost a third less
under any policy, and the hours of a loss are played under the policy that decided in them, too (`borne_out`).

A watch that is called each hour keeps the sums of the hours that it has compared (`KeptHours`), and replays the others
alone, with LEAD_S before them. The newest KEPT_AFTER_H hours are replayed again: how long their jobs are is known when
these have finished.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.registry import policy_from_name
from agent.models.directory import Seal, seal_of
from agent.models.regular_files import read_file
from domain.rules.queue_rule import RuleSetting
from domain.units import DAY_S, HOUR_S, MINUTE_S
from trainer.kit.files import replace_file
from trainer.learning.loss_watch import LossResult, LossVerdict, loss_watch
from trainer.learning.minutes import DecidedMinute, jobs_of, span_of
from trainer.learning.self_tuning import WITHIN, Simulate, by_rule, names_rule, simulate, under
from trainer.learning.subject import Learner
from trainer.promotion.directory import sealed

DAY_ZERO_SEED: Final = 2_900_000_000
"""Boot seed of the replay; training, tuning and judgement use others."""
LEAST_MINUTES: Final = 55
"""Of an hour, recorded and decided by policies of one kind."""
KEPT_AFTER_H: Final = 6
LEAD_S: Final = DAY_S
LARGEST_KEPT_BYTES: Final = 1024 * 1024
HORIZON_WITHIN: Final = 1e-5
"""Share by which a recorded horizon may differ from a setting: names have six digits."""
RULE, EARLIER, CHANGED = 0, 1, 2
"""Kinds of minutes: the rule of day 0 decided, a policy that was promoted before, or the watched one."""

KindOf = Callable[[DecidedMinute], int | None]
"""Returns the kind of the policy that decided at the end of a minute; None leaves the minute out."""


@dataclass(frozen=True, slots=True)
class LivedHours:
    """Dollars of hours, oldest first: recorded, and replayed under the rule of day 0. kind, number: of each hour."""

    lived: NDArray[np.float64]
    rule: NDArray[np.float64]
    kind: NDArray[np.int64]
    number: NDArray[np.int64]

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[float]]) -> LivedHours:
        """Return hours of rows (lived, rule, kind, number)."""
        lived, rule, kind, number = np.array(rows, dtype=np.float64).reshape(-1, 4).T
        return cls(lived, rule, kind.astype(np.int64), number.astype(np.int64))

    @property
    def rows(self) -> list[list[float]]:
        """The rows of `of_rows`."""
        found: list[list[float]] = np.column_stack([self.lived, self.rule, self.kind, self.number]).tolist()
        return found

    def of(self, *kinds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return recorded and replayed dollars of the hours of some kinds."""
        chosen = np.isin(self.kind, kinds)
        return self.lived[chosen], self.rule[chosen]


@dataclass(frozen=True, slots=True)
class KeptHours:
    """Hours whose comparison is kept, those with numbers below `until`; the hour with number 0 begins at a promotion.

    facts: the inputs of the comparison. until: None before the first one.
    """

    facts: Mapping[str, Any]
    hours: LivedHours = field(default_factory=lambda: LivedHours.of_rows([]))
    until: int | None = None

    def with_newer(self, newer: LivedHours) -> LivedHours:
        """Return the kept hours, and newer hours after them."""
        if self.until is None:
            return newer
        return LivedHours.of_rows([*self.hours.rows, *(row for row in newer.rows if row[3] >= self.until)])

    def kept_of(self, hours: LivedHours, end_s: float) -> KeptHours:
        """Return those of the hours that need no further replay. end_s: of the newest minute, since the promotion."""
        until = kept_until(end_s)
        return KeptHours(self.facts, LivedHours.of_rows([row for row in hours.rows if row[3] < until]), until)


def kept_until(end_s: float) -> int:
    """Return the number of the first hour that is replayed again. end_s: of the newest minute, since the promotion."""
    return int(end_s // HOUR_S) - KEPT_AFTER_H


def read_kept(path: Path, facts: Mapping[str, Any], key: bytes | None) -> KeptHours:
    """Return the kept hours of a file; none where they have other facts, or the seal does not hold.

    key: that signs reports, None without one.
    """
    try:
        data = json.loads(read_file(path, LARGEST_KEPT_BYTES))
        is_ours = seal_of(data, key) is (Seal.UNSIGNED if key is None else Seal.SIGNED) and data["facts"] == facts
        return KeptHours(facts, LivedHours.of_rows(data["hours"]), int(data["until"])) if is_ours else KeptHours(facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return KeptHours(facts)


def write_kept(path: Path, kept: KeptHours, key: bytes | None) -> None:
    """Write the kept hours, sealed, whole or not at all; OSError."""
    body = {"facts": kept.facts, "hours": kept.hours.rows, "until": kept.until}
    replace_file(path, json.dumps(sealed(body, key)) + "\n")


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

    There is no loss where a replay under the rule that decided does not cost more than one under that of day 0.
    changed_s: when the rule of day 0 decided last, before that moment or None for it. The day before it, as far as that
    rule decided in it, shows by how much the replay errs.
    """
    changed_s = since_s if changed_s is None else changed_s

    def kind_of(minute: DecidedMinute) -> int | None:
        if minute.end_s >= since_s:
            return CHANGED if by_rule(minute) else None
        return RULE if changed_s - DAY_S <= minute.end_s < changed_s and decided_by(minute, day_0) else None

    hours = lived_hours(learner, day_0, kind_of, since_s, play=play)
    found = loss_watch(*hours.of(CHANGED), hours.of(RULE), within=WITHIN)
    if not found.is_loss:
        return found
    decided = lived_hours(learner, None, lambda one: CHANGED if kind_of(one) == CHANGED else None, since_s, play=play)
    return borne_out(found, hours, decided)


def borne_out(found: LossResult, hours: LivedHours, decided: LivedHours) -> LossResult:
    """Return a loss, and none where a replay of the changed policy does not cost more than one of the rule of day 0.

    hours, decided: replayed from the same begin on, under that rule and under the policies that decided.
    """
    newest = hours.number[hours.kind != RULE][-found.span_hours :]
    both = np.intersect1d(newest, decided.number[decided.kind == CHANGED])
    own, rule = (float(one.rule[(one.kind == CHANGED) & np.isin(one.number, both)].sum()) for one in (decided, hours))
    if not both.size or own > (1.0 + found.tolerance) * rule:
        return found
    why = f"a replay of the policy in use costs {own:.2f} $ there, one of the rule of day 0 {rule:.2f} $"
    return replace(found, verdict=LossVerdict.CONTINUE, reason=f"{why}, so that the replay is off: {found.reason}")


def lived_hours(
    learner: Learner, rule: RuleSetting | None, kind_of: KindOf, origin_s: float, *, play: Simulate = simulate
) -> LivedHours:
    """Return the recorded hours; one whose minutes are of several kinds is left out.

    rule: of day 0; None replays the policies that decided. origin_s: a begin of an hour, epoch seconds.
    """
    job_core_s = learner.recorded.job_core_s
    costs: dict[tuple[int, int], list[float]] = {}
    # By hour and kind.
    for stretch in learner.recorded.stretches if job_core_s is not None else ():
        jobs = jobs_of(stretch)
        for kind, minutes in _parts(stretch, kind_of):
            span = span_of("hours", minutes, job_core_s or 0.0, jobs=jobs)
            loop, ours = (learner.loop, span) if rule is None else under(learner, span, rule)
            cost = play(loop, learner.config, ours, DAY_ZERO_SEED)
            hours = (span.start_s + MINUTE_S * np.arange(span.steps) - origin_s) // HOUR_S
            for hour in np.unique(hours).astype(int).tolist():
                own = hours == hour
                held = costs.setdefault((hour, kind), [0.0, 0.0, 0.0])
                held[0] += float((span.rent + span.penalty)[own].sum())
                held[1] += float(cost[own].sum())
                held[2] += float(own.sum())
    known = ((*key, found) for key, found in sorted(costs.items()) if found[2] >= LEAST_MINUTES)
    return LivedHours.of_rows([(lived, rule, kind, hour) for hour, kind, (lived, rule, _) in known])


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
