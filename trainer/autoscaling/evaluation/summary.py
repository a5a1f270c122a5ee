"""From rows to figures: each policy per family, its interval, and how it stands against the reference (§11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agent.kernel.text import counted
from domain.errors import BadInput
from domain.units import MINUTE_S
from trainer.autoscaling.evaluation.results import Absence, Evaluation, Row
from trainer.autoscaling.evaluation.suite import GROUPS, OWN, TITLES
from trainer.autoscaling.policy_names import stuck
from trainer.kit.intervals import FEWEST_CASES, Comparison, Interval, compare, mean_interval

WORSE_LIMIT = 0.05
"""A policy must not cost more than this above the reference on any family (issue's quality figures, §12.4)."""
SHUTDOWN_LIMIT_MIN = 15.0
"""The minimum fleet must be reached within this of an empty queue (§12.6)."""

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "learned": {"run_time_min": 173.0, "rent": 8.67, "utilisation": 0.69, "allocated_ratio": 0.4993},
    "threshold 75 %": {"run_time_min": 149.0, "rent": 9.95, "utilisation": 0.61, "allocated_ratio": 0.6624},
}
"""The published experiment (§11): one run each, on a live cloud."""
PUBLISHED_RENT_CHANGE, PUBLISHED_TIME_CHANGE = -0.129, 0.161


MEANS = (
    *("rent", "penalty", "run_time_s", "mean_wait_s", "p95_wait_s", "allocated_ratio", "utilisation", "idle_core_h"),
    *("interruptions", "lost_core_s", "refused", "changes", "peak_cores"),
)
"""Measures whose means are shown; changes: VMs added and removed."""


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """One policy on one family (or one group): means over its cases, and the comparison with the reference.

    cost: interval of the mean episode cost in dollars. means: of MEANS, by name; the run time is in minutes there
    (`run_time_min`). idle_worst_min: the longest idle shutdown of all cases, None without an idle stretch. against:
    None for the reference itself, where the reference has no figure of the same cases, and where either is stuck.
    stuck: why its cost is compared with none: some of its cases were cut off, or a rule changed nothing; else empty.
    """

    policy: str
    family: str
    cases: int
    cost: Interval
    means: Mapping[str, float]
    truncated: int
    first_core_s: float | None
    idle_worst_min: float | None
    idle_released: bool
    against: Comparison | None
    stuck: str = ""

    @property
    def group(self) -> str:
        """T1 to T6."""
        return self.family.split()[0]

    @property
    def idle_text(self) -> str:
        """The longest idle shutdown in minutes, with a `>` where the minimum was not reached."""
        if self.idle_worst_min is None:
            return "—"
        return f"{'' if self.idle_released else '> '}{self.idle_worst_min:.0f}"

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data, the means among the other figures."""
        data = asdict(self)
        means: dict[str, float] = data.pop("means")
        return data | means


@dataclass(frozen=True, slots=True)
class Trade:
    """Rent and run time of a policy against another on the closed loop T4, as changes (-0.1 = 10 % less)."""

    policy: str
    reference: str
    rent: Comparison
    run_time: Comparison


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a policy keeps the promises for use: never much dearer than the reference, and idle VMs given back.

    families: on how many of them it took part; partial: not on all.
    overall: its cost against the reference over all cases of both, families counting alike. worst_family: where its
    cost stands highest against the reference, and worst_relative how high. cut_off: some of its runs were.
    shutdown_min: the longest idle shutdown on T6.
    """

    policy: str
    families: int
    partial: bool
    overall: Comparison | None
    worst_family: str | None
    worst_relative: float | None
    cut_off: bool
    shutdown_min: float | None
    shutdown_released: bool

    @property
    def never_worse(self) -> bool | None:
        """Whether it stays within the limit on every family; None without a comparison."""
        if self.cut_off:
            return False
        return None if self.worst_relative is None else self.worst_relative <= WORSE_LIMIT

    @property
    def shuts_down(self) -> bool | None:
        """Whether the minimum fleet is reached in time; None without an idle stretch."""
        if self.shutdown_min is None:
            return None
        return self.shutdown_released and self.shutdown_min <= SHUTDOWN_LIMIT_MIN


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything the report shows in figures."""

    reference: str
    policies: tuple[str, ...]
    families: tuple[str, ...]
    results: tuple[FamilyResult, ...]
    verdicts: tuple[Verdict, ...]
    trades: tuple[Trade, ...]
    absences: tuple[Absence, ...]
    code: str

    def result(self, policy: str, family: str) -> FamilyResult | None:
        """Return one policy's result on a family, None where it has none."""
        return next((s for s in self.results if (s.policy, s.family) == (policy, family)), None)

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "reference": self.reference,
            "code": self.code,
            "families": {family: TITLES[family.split()[0]] for family in self.families},
            "standings": [result.as_data() for result in self.results],
            "verdicts": [
                asdict(verdict) | {"never_worse": verdict.never_worse, "shuts_down": verdict.shuts_down}
                for verdict in self.verdicts
            ],
            "trades": [asdict(trade) for trade in self.trades],
            "published": {name: dict(figures) for name, figures in PUBLISHED.items()},
            "absences": [asdict(absence) for absence in self.absences],
        }


def summarise(evaluated: Evaluation, reference: str) -> Summary:
    """Build the summary; BadInput when the reference is none of the policies."""
    rows = evaluated.rows
    policies = tuple(dict.fromkeys(row.policy for row in rows))
    if reference not in policies:
        raise BadInput("--against", reference, f"choose one of {', '.join(policies) or 'the policies that ran'}")
    families = tuple(
        sorted(dict.fromkeys(row.family for row in rows), key=lambda f: ((*GROUPS, OWN).index(f.split()[0]), f))
    )
    by: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        by.setdefault((row.policy, row.family), {})[row.case_key] = row
    stops = {key: _stuck(list(found.values())) for key, found in by.items()}

    def comparable(policy: str, family: str) -> bool:
        return policy != reference and not stops.get((policy, family)) and not stops.get((reference, family))

    results = tuple(
        _result(
            *(policy, family, by[policy, family], stops[policy, family]),
            by.get((reference, family), {}) if comparable(policy, family) else {},
        )
        for family in families
        for policy in policies
        if (policy, family) in by
    )
    compared = [row for row in rows if not stops[row.policy, row.family]]
    return Summary(
        reference=reference,
        policies=policies,
        families=families,
        results=results,
        verdicts=tuple(
            _verdict(
                policy, [s for s in results if s.policy == policy], families, _overall(policy, reference, compared)
            )
            for policy in policies
        ),
        trades=_trades(
            policies,
            {policy: {} if stops.get((policy, "T4")) else by.get((policy, "T4"), {}) for policy in policies},
        ),
        absences=evaluated.absences,
        code=rows[0].code,
    )


def _stuck(rows: Sequence[Row]) -> str:
    return stuck(rows[0].policy_key, rows, sum(row.truncated for row in rows))


def _result(
    policy: str, family: str, ours: Mapping[str, Row], why_stuck: str, theirs: Mapping[str, Row]
) -> FamilyResult:
    rows = list(ours.values())
    means = {name: float(np.mean([_figure(row, name) for row in rows])) for name in MEANS}
    means["run_time_min"] = means.pop("run_time_s") / MINUTE_S
    # 0 stands for no burst in which a VM became ready.
    first = [row.first_core_s for row in rows if row.first_core_s > 0.0]
    return FamilyResult(
        policy,
        family,
        len(rows),
        cost=mean_interval([row.cost for row in rows]),
        means=means,
        truncated=sum(row.truncated for row in rows),
        first_core_s=float(np.mean(first)) if first else None,
        idle_worst_min=max((row.idle_worst_min for row in rows if row.idle_worst_min is not None), default=None),
        idle_released=all(row.idle_released for row in rows),
        against=_compared(ours, theirs, "cost"),
        stuck=why_stuck,
    )


def _figure(row: Row, name: str) -> float:
    if name == "changes":
        return sum(row.added) + sum(row.removed)
    return sum(row.refused) if name == "refused" else float(getattr(row, name))


def _compared(ours: Mapping[str, Row], theirs: Mapping[str, Row], measure: str) -> Comparison | None:
    """Compare on the cases that both have been run on."""
    shared = [key for key in ours if key in theirs]
    if not shared:
        return None
    return compare([getattr(ours[k], measure) for k in shared], [getattr(theirs[k], measure) for k in shared])


def _overall(policy: str, reference: str, rows: Sequence[Row]) -> Comparison | None:
    theirs = {row.case_key: row.cost for row in rows if row.policy == reference}
    ours = [row for row in rows if row.policy == policy and row.case_key in theirs]
    if policy == reference or not ours:
        return None
    return compare([r.cost for r in ours], [theirs[r.case_key] for r in ours], [r.family for r in ours])


def _verdict(
    policy: str, results: Sequence[FamilyResult], families: Sequence[str], overall: Comparison | None
) -> Verdict:
    compared = [(s.against.relative.mean, s.family) for s in results if s.against is not None]
    worst = max(compared, default=None)
    idle = [s for s in results if s.group == "T6" and s.idle_worst_min is not None]
    return Verdict(
        policy=policy,
        families=len(results),
        partial=len(results) < len(families),
        overall=overall,
        worst_family=worst[1] if worst else None,
        worst_relative=worst[0] if worst else None,
        cut_off=any(s.truncated for s in results),
        shutdown_min=max((s.idle_worst_min for s in idle if s.idle_worst_min is not None), default=None),
        shutdown_released=all(s.idle_released for s in idle),
    )


def _trades(policies: Sequence[str], rows: Mapping[str, Mapping[str, Row]]) -> tuple[Trade, ...]:
    """Compare every policy on T4 with each published form of the threshold that takes part."""
    trades = []
    for reference in policies:
        if not _published_threshold(rows[reference]):
            continue
        for policy in policies:
            rent = _compared(rows[policy], rows[reference], "rent") if policy != reference else None
            run_time = _compared(rows[policy], rows[reference], "run_time_s") if policy != reference else None
            if rent is not None and run_time is not None:
                trades.append(Trade(policy, reference, rent, run_time))
    return tuple(trades)


def _published_threshold(rows: Mapping[str, Row]) -> bool:
    return any(row.policy_key.startswith("threshold:high=0.75,low=0.75,") for row in rows.values())


def few_cases(summary: Summary) -> str:
    """Return a sentence on the families without a verdict, for too few cases; "" where there are none."""
    few = {one.family: one.cases for one in summary.results if one.cases < FEWEST_CASES}
    if not few:
        return ""
    named = ", ".join(f"{family} has {counted(cases, 'case')}" for family, cases in few.items())
    return f"From fewer than {FEWEST_CASES} cases there is no verdict: {named}."
