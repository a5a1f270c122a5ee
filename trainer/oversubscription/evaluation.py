"""Oversubscription policies on the same weeks and usage: own week, unseen weeks, and what may differ from both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simulator.oversubscription.scenario import Scenario, Week
from trainer.oversubscription.calibration import fit_static
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import Task, policy_of
from trainer.oversubscription.policies.static import TAIL, Rule
from trainer.oversubscription.rates_file import shipped_rates
from trainer.oversubscription.reliability import Point, calibration_points, measured_points
from trainer.oversubscription.result_store import Kept
from trainer.oversubscription.stresses import (
    FILTER_BUDGET,
    left_out,
    on_correlated,
    on_persistent,
    on_shifted,
    released,
)
from trainer.oversubscription.trials import OWN, UNSEEN, Contender, Extent, Row, Told, Trials, policy_text
from trainer.oversubscription.unseen import arrivals_of, unseen_week

ALPHAS = (0.75, 0.85, 0.95)
RESERVE = 0.1
"""Share of the allowed risk that a static optimum leaves: assessed at the limit, half of them break it when played."""
VARIANTS = {
    "static, Markov's bound": Rule(bound="markov"),
    "static, steps of 0.05": Rule(step=0.05),
    "static, rates by 6 h": Rule(block_h=6),
}
"""Other static optima at 0.95 (§8): the published bound, finer levels, rates by time of day."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All rows of one scenario and start, and points of predicted against realised risk."""

    scenario: str
    start: str
    rows: list[Row]
    points: list[Point]
    policies: Mapping[str, str]
    """What searches found, by label: the text of a policy."""
    extent: Extent
    schedules: Mapping[str, list[list[float]]] = field(default_factory=dict)
    """Rates by hour on the own week, of some policies, for the pictures."""
    measured: list[Point] = field(default_factory=list)
    """Points on usage from files."""
    packaged: bool = False
    """Whether the scenario came with the program: only then are there reference figures for it."""

    def of(self, label: str, kind: str = OWN) -> list[Row]:
        """Return a policy's rows of one kind."""
        return [row for row in self.rows if row["label"] == label and row["kind"] == kind]

    def as_data(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        names = ("scenario", "start", "rows", "points", "measured", "policies")
        return {name: getattr(self, name) for name in names} | {
            "extent": {name: getattr(self.extent, name) for name in Extent.__slots__}
        }


def contenders_of(trials: Trials) -> tuple[list[Contender], dict[str, str]]:
    """Return the policies that are always compared, and what searches found, by label."""
    scenario = trials.scenario
    weeks = tuple(scenario.week(name) for name in scenario.weeks)
    found = {f"static {alpha:g}": _static(trials, weeks[0], alpha, TAIL) for alpha in ALPHAS}
    found |= {label: _static(trials, weeks[0], 0.95, rule) for label, rule in VARIANTS.items()}
    shipped = shipped_rates(scenario, trials.start)
    found["calibrated 0.95"] = (
        released(trials, weeks, shield=False)
        if shipped is None
        else policy_text(np.array(shipped.rates), shipped.guard)
    )
    found["shielded 0.95"] = released(trials, weeks, shield=True)
    fixed = [Contender(f"Grid-{rate}", (f"grid:{rate}",), single_week=True) for rate in (0.2, 0.4, 0.6)]
    own = [Contender("No-oversub", ("none",)), Contender("MA", ("ma",)), Contender("SL", ("sl",))]
    loose = {f"static {alpha:g}": alpha for alpha in ALPHAS if alpha < 0.95}
    searched = [
        Contender(label, (text,), loose.get(label, 0.95), single_week=label in loose) for label, text in found.items()
    ]
    return [*fixed, *own, *searched, Contender("risk filter", (f"filter:rate=0.2,b={FILTER_BUDGET}",))], found


def evaluate(
    scenario: Scenario,
    start: str,
    extra: Sequence[Contender] = (),
    *,
    extent: Extent | None = None,
    measured: Sequence[Path] = (),
    kept: Kept | None = None,
    told: Told = lambda _: None,
) -> Evaluation:
    """Return how policies do on a scenario; raises BadInput.

    extra: more policies, such as learned ones. measured: files of VM-days on which risk is predicted and sampled. kept:
    results that are there already, and where new ones go.
    """
    trials = Trials(scenario, start, extent or Extent(), kept or Kept(None), told)
    extent = trials.extent
    standing, found = contenders_of(trials)
    rows, own = [], scenario.week(scenario.weeks[0])
    fresh = [unseen_week(arrivals_of(scenario), seed) for seed in range(extent.unseen)]
    for contender in [*standing, *extra]:
        # The same rate for everybody promises nothing.
        long = contender.label in found or not contender.single_week
        for at in range(len(contender.texts)):
            episodes = extent.long_episodes if long else extent.episodes
            rows.append(trials.row(contender, own, OWN, episodes, at=at, short=extent.episodes))
            weeks = () if contender.single_week else fresh
            rows += [trials.row(contender, week, UNSEEN, extent.episodes, at=at) for week in weeks]
    rows += left_out(trials, found["static 0.95"]) if extent.left_out else ()
    rows += on_shifted(trials, found["calibrated 0.95"])
    rows += on_correlated(trials, {label: found[label] for label in ("static 0.95", "calibrated 0.95")})
    rows += on_persistent(trials, found["static 0.95"]) if start == "cold" else ()
    schedules = {
        contender.label: judge(policy_of(contender.texts[0]), Task(scenario, own, start), episodes=1).rates.tolist()
        for contender in (*extra, *(c for c in standing if c.label in ("SL", "MA")))
    }
    points = calibration_points(trials, [own, *fresh], [found[f"static {alpha:g}"] for alpha in ALPHAS])
    by_file = [point for path in measured for point in measured_points(trials, path)]
    return Evaluation(scenario.name, start, rows, points, found, extent, schedules, by_file, packaged=scenario.packaged)


def _static(trials: Trials, week: Week, alpha: float, rule: Rule) -> str:
    search: dict[str, Any] = {"alpha": alpha, "evaluations": trials.extent.evaluations, "seed": 0, "reserve": RESERVE}
    facts = {"bound": rule.bound, "step": rule.step, "block_h": rule.block_h}
    fit = partial(fit_static, trials.scenario, week.name, start=trials.start, rule=rule, told=trials.told, **search)
    return trials.found("static", (week,), fit, **search, **facts)
