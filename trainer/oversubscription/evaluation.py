"""Oversubscription policies on the same weeks and usage: own week, unseen weeks, shifted profiles, VMs that persist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.rules.oversubscription.verdict import clopper_pearson_upper
from simulator.oversubscription.sampling import sample
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Assessor
from trainer.oversubscription.calibration import calibrate, fit_static
from trainer.oversubscription.playing import judge
from trainer.oversubscription.policies import OversubscriptionPolicy, Task, policy_of
from trainer.oversubscription.policies.scheduled import as_rates
from trainer.oversubscription.rates_file import shipped_rates
from trainer.oversubscription.unseen import arrivals_of, shifted, unseen_week

Floats = NDArray[np.float64]
Row = dict[str, Any]
Told = Callable[[str], None]

ALPHAS = (0.75, 0.85, 0.95)
SEED = 4_000_000_007
"""First episode of every evaluation; training, selection and calibration use others."""
OWN, UNSEEN, SHIFTED, PERSISTENT = "own", "unseen", "shifted", "persistent"
SHIELD_BUDGET, FILTER_BUDGET = 0.003, 0.003
PERSISTENT_USAGE = "persistent:psi=0.85"
PERSISTENT_BASE = {"internal_like": "grid:0.3"}
"""Base of the shield that knows each VM's level; where there is no entry, the static optimum."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy under a name; several texts are seeds of one method."""

    label: str
    texts: tuple[str, ...]
    alpha: float = 0.95
    single_week: bool = False
    """Whether it is shown on its own week alone, as its promise is looser."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is played."""

    episodes: int = 300
    long_episodes: int = 2_000
    """On the own week, for what promises 0.95."""
    unseen: int = 4
    shifted: int = 1
    persistent: int = 60
    points: int = 16
    """Rates whose predicted and realised risk are compared."""
    evaluations: int = 1_500
    """Weeks assessed by each search."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All rows of one scenario and start, and points of predicted against realised risk."""

    scenario: str
    start: str
    rows: list[Row]
    points: list[dict[str, float]]
    rates: Mapping[str, list[float]]
    """Constant rates that searches found, by label."""
    extent: Extent
    schedules: Mapping[str, list[list[float]]] = field(default_factory=dict)
    """Rates by hour on the own week, of some policies."""

    def of(self, label: str, kind: str = OWN) -> list[Row]:
        """Return a policy's rows of one kind."""
        return [row for row in self.rows if row["label"] == label and row["kind"] == kind]

    def as_data(self) -> dict[str, Any]:
        """Return everything for JSON."""
        names = ("scenario", "start", "rows", "points", "rates", "schedules")
        return {name: getattr(self, name) for name in names} | {
            "extent": {name: getattr(self.extent, name) for name in Extent.__slots__}
        }


def contenders_of(
    scenario: Scenario, start: str, extent: Extent, told: Told = lambda _: None
) -> tuple[list[Contender], dict[str, list[float]]]:
    """Return the policies that are always compared, and the rates that searching them found."""
    search: dict[str, Any] = {"start": start, "evaluations": extent.evaluations, "seed": 0, "told": told}
    week = scenario.weeks[0]
    static = {alpha: fit_static(scenario, week, alpha=alpha, **search).rates for alpha in ALPHAS}
    shipped = shipped_rates(scenario, start)
    calibrated = calibrate(scenario, alpha=0.95, **search).rates if shipped is None else np.array(shipped.rates)
    looser = as_rates(static[0.85])
    found = {f"static {alpha:g}": rates.tolist() for alpha, rates in static.items()}
    fixed = [Contender(f"Grid-{rate}", (f"grid:{rate}",), single_week=True) for rate in (0.2, 0.4, 0.6)]
    own = [Contender("No-oversub", ("none",)), Contender("MA", ("ma",)), Contender("SL", ("sl",))]
    searched = [Contender(f"static {a:g}", (as_rates(static[a]),), a, single_week=a < 0.95) for a in ALPHAS]
    release = [
        Contender("calibrated 0.95", (as_rates(calibrated),)),
        Contender("shielded 0.95", (f"shield:base=({looser}),b={SHIELD_BUDGET}",)),
        Contender("risk filter", (f"filter:rate=0.2,b={FILTER_BUDGET}",)),
    ]
    return [*fixed, *own, *searched, *release], found | {"calibrated 0.95": calibrated.tolist()}


def evaluate(
    scenario: Scenario,
    start: str,
    extra: Sequence[Contender] = (),
    *,
    extent: Extent | None = None,
    told: Told = lambda _: None,
) -> Evaluation:
    """Return how policies do on a scenario; extra: more policies, such as learned ones. Raises BadInput."""
    extent = extent or Extent()
    standing, rates = contenders_of(scenario, start, extent, told)
    contenders = [*standing, *extra]
    rows, own = [], scenario.week(scenario.weeks[0])
    fresh = [unseen_week(arrivals_of(scenario), seed) for seed in range(extent.unseen)]
    for contender in contenders:
        for at, text in enumerate(contender.texts):
            told(f"{contender.label} on {own.name}")
            policy, long = policy_of(text), contender.alpha >= 0.95 and not contender.single_week
            episodes = extent.long_episodes if long else extent.episodes
            rows.append(_row(contender, at, policy, scenario, own, start, OWN, episodes, extent.episodes))
            for week in () if contender.single_week else fresh:
                told(f"{contender.label} on {week.name}")
                rows.append(_row(contender, at, policy, scenario, week, start, UNSEEN, extent.episodes))
    for seed in range(extent.shifted):
        rows += _refreshed(shifted(scenario, seed), start, f"profile{seed}", rates["calibrated 0.95"], extent, told)
    if start == "cold":
        rows += _persisting(scenario, rates["static 0.95"], extent, told)
    points = calibration_points(scenario, start, [own, *fresh], np.array(rates["static 0.75"]), extent)
    schedules = {
        contender.label: judge(policy_of(contender.texts[0]), Task(scenario, own, start), episodes=1).rates.tolist()
        for contender in (*extra, *(c for c in standing if c.label in ("SL", "MA")))
    }
    return Evaluation(scenario.name, start, rows, points, rates, extent, schedules)


def _row(
    contender: Contender,
    at: int,
    policy: OversubscriptionPolicy,
    scenario: Scenario,
    week: Week,
    start: str,
    kind: str,
    episodes: int,
    short: int | None = None,
    usage: str = "gauss",
) -> Row:
    judged = judge(policy, Task(scenario, week, start, contender.alpha), usage=usage, episodes=episodes, seed=SEED)
    row = judged.as_data() | {"label": contender.label, "seed_index": at, "kind": kind, "alpha": contender.alpha}
    hot = judged.sampled.hot_hours[: short or episodes]
    row["c_hot_r_short"] = float((hot >= judged.sampled.limit).mean())
    row["policy"] = contender.label
    return row


def _refreshed(
    changed: Scenario, start: str, name: str, old: Sequence[float], extent: Extent, told: Told
) -> Iterable[Row]:
    """Return rows on profiles that have shifted: rates as they were, rates fitted anew, and the moving average."""
    told(f"{name}: fitting anew")
    anew = calibrate(
        changed, start=start, alpha=0.95, evaluations=extent.evaluations, shield=SHIELD_BUDGET, told=told
    ).rates
    policies = [
        Contender("MA", ("ma",)),
        Contender("calibrated before", (as_rates(np.array(old)),)),
        Contender("calibrated anew", (f"shield:base=({as_rates(anew)}),b={SHIELD_BUDGET}",)),
    ]
    arrivals = arrivals_of(changed)
    for seed in range(2):
        week = unseen_week(arrivals, 500 + seed)
        for contender in policies:
            told(f"{name} {contender.label} on {week.name}")
            row = _row(contender, 0, policy_of(contender.texts[0]), changed, week, start, SHIFTED, extent.episodes)
            yield row | {"week": f"{name} {week.name}"}


def _persisting(scenario: Scenario, static: Sequence[float], extent: Extent, told: Told) -> Iterable[Row]:
    """Return rows for VMs that keep a level of their own, with and without knowing it."""
    optimum = as_rates(np.array(static))
    base = PERSISTENT_BASE.get(scenario.name, optimum)
    policies = [
        Contender("No-oversub", ("none",)),
        Contender("static 0.95", (optimum,)),
        Contender("shield, knowing VMs", (f"shield:base=({base}),b=0.001,posterior=true",)),
        Contender("risk filter", ("filter:rate=0.2,b=0.001",)),
        Contender("risk filter, knowing VMs", (f"filter:rate=0.2,b={FILTER_BUDGET},posterior=true",)),
    ]
    week = scenario.week(scenario.weeks[0])
    for contender in policies:
        told(f"{contender.label}, VMs that persist")
        policy = policy_of(contender.texts[0])
        episodes = extent.persistent if "posterior" in contender.texts[0] else extent.episodes
        yield _row(contender, 0, policy, scenario, week, "cold", PERSISTENT, episodes, usage=PERSISTENT_USAGE)


def calibration_points(
    scenario: Scenario, start: str, weeks: Sequence[Week], base: Floats, extent: Extent, seed: int = 0
) -> list[dict[str, float]]:
    """Return predicted and realised risk of rates beside `base`, on weeks in turn (B7)."""
    draws, actions, points = np.random.default_rng(seed), np.array(scenario.actions), []
    at = np.array([int(np.abs(actions - rate).argmin()) for rate in base])
    for i in range(extent.points):
        moved = np.where(draws.random(len(at)) < 0.25, draws.integers(-1, 3, len(at)), 0)
        rates = actions[np.clip(at + moved, 0, len(actions) - 1)]
        risk = Assessor(scenario, weeks[i % len(weeks)], start).assess(rates)
        model = usage_of("gauss", scenario, risk.placement.week)
        sampled = sample(risk.placement, model, np.arange(SEED, SEED + extent.episodes))
        points.append(
            {
                "predicted": float(risk.c_hot_r),
                "realised": sampled.c_hot_r,
                "upper_95": clopper_pearson_upper(sampled.violations, sampled.episodes),
                "unseen": float(i % len(weeks) > 0),
            }
        )
    return points
