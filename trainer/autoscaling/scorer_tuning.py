"""Training a scorer on one's own world and loads, from nothing or from weights that exist.

Loads are cut into windows. The later ones of each log are left out: nothing is learnt, tuned or chosen on them, and
they decide whether the result is used. The rule for that is fixed here, before anything is measured: mean gain above 0,
and surer than SURE by a bootstrap over windows, each with its costs side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.units import DAY_S, HOUR_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.branching import NO_WEIGHTS, BranchedEpisodes, RuleSetting, Weights
from simulator.autoscaling.configuration import SimulationConfig
from trainer.autoscaling.fleets import DAYS, HORIZONS_S, IDLE_S, LEAST_WINDOWS, LEFT_OUT, WINDOWS
from trainer.autoscaling.scorer import HELD_OUT, MARGINS, WORST, Lesson, Map, Recipe, Trained
from trainer.autoscaling.scorer_runs import Plan, hash_of
from trainer.kit.checkpoint import plain
from trainer.kit.intervals import compare

Floats = NDArray[np.float64]

SURE = 0.9
"""How sure it must be that weights trained here cost less than those they are to replace."""
BOOTS = 3
"""Boot seeds that each window is judged on."""
OWN_SEED, MARGIN_SEED, JUDGING_SEED, RULE_SEED = 3_000_000_000, 2_900_000_000, 2_800_000_000, 2_700_000_000
"""Boot seeds of lessons, of the choice of the margin, of judging and of tuning the rule."""
THINNED, SCALED = 0.25, 0.1
"""Jobs that a lesson leaves out at most, as a share, and how far it moves their lengths (sigma of the logarithm)."""
MOST_TUNED_ON = 6
"""Windows that the rule is tuned on."""
FINE = Recipe(rounds=(120, 120), explore=(0.1, 0.05), rate=5e-4, epochs=4.0, batch=512)
"""Fine-tuning: fewer lessons, and steps so small that what is known is kept where own loads say nothing."""
ALONE = Recipe(rounds=(150, 150, 150), explore=(0.15, 0.05, 0.05))
"""From nothing, for one world."""


@dataclass(frozen=True, slots=True)
class Loads:
    """One's own loads, cut by time.

    parts: of each log, what may be learnt from. learnt, left_out: windows of before and after the cut. window_s: their
    length.
    """

    parts: tuple[Trace, ...]
    learnt: tuple[Trace, ...]
    left_out: tuple[Trace, ...]
    window_s: float

    @property
    def plain(self) -> dict[str, Any]:
        """What identifies them, as JSON data."""
        digests = {name: [trace.digest for trace in getattr(self, name)] for name in ("learnt", "left_out")}
        return {"window_s": self.window_s, **digests}


def loads_of(traces: Sequence[Trace]) -> Loads:
    """Cut traces into windows, and leave out the later ones; BadInput where too few have jobs."""
    for trace in traces:
        if trace.staged:
            raise BadInput("--workload", trace.name, "give one whose jobs arrive at fixed times")
    spans = [float(trace.arrival_s.max()) + 1.0 for trace in traces]
    window_s = DAY_S if sum(spans) >= DAYS * DAY_S else max(sum(spans) / WINDOWS, HOUR_S)
    cut = [
        [found for k in range(max(math.ceil(span / window_s - 0.5), 1)) if (found := _window(trace, k, window_s))]
        for trace, span in zip(traces, spans, strict=True)
    ]
    many = [windows for windows in cut if len(windows) > 1]
    # Logs of one window each are taken as they were given: the later ones are left out.
    lone = [windows[0] for windows in cut if len(windows) == 1]
    learnt, left_out, parts = [], [], []
    for trace, windows in zip(traces, cut, strict=True):
        if len(windows) > 1:
            kept = _kept(len(windows))
            learnt += windows[:kept]
            left_out += windows[kept:]
            end_s = window_s * (1 + int(windows[kept - 1].name.rpartition("#")[2]))
            parts.append(cut_out(trace, 0.0, end_s, f"{trace.name}#0-{kept}"))
    if lone:
        kept = _kept(len(lone)) if len(lone) > 1 else 0 if many else 1
        learnt += lone[:kept]
        left_out += lone[kept:]
        parts += lone[:kept]
    if min(len(learnt), len(left_out)) < LEAST_WINDOWS:
        remedy = (
            f"they make {len(learnt)} windows of {window_s / HOUR_S:.3g} h to learn from and {len(left_out)} to judge "
            f"by, and {LEAST_WINDOWS} of each are needed: give a longer log, or more of them"
        )
        raise BadInput("--workload", ", ".join(trace.name for trace in traces), remedy)
    return Loads(tuple(parts), tuple(learnt), tuple(left_out), window_s)


def _kept(windows: int) -> int:
    return windows - max(round(LEFT_OUT * windows), 1)


def _window(trace: Trace, number: int, window_s: float) -> Trace | None:
    found = (trace.arrival_s >= number * window_s) & (trace.arrival_s < (number + 1) * window_s)
    if found.sum() < 2:
        return None
    return cut_out(trace, number * window_s, (number + 1) * window_s, f"{trace.name}#{number}")


def cut_out(trace: Trace, begin_s: float, end_s: float, name: str) -> Trace:
    """Return the jobs that arrive in [begin_s, end_s), seconds from its begin."""
    return _of(trace, (trace.arrival_s >= begin_s) & (trace.arrival_s < end_s), begin_s, 1.0, name)


def _of(trace: Trace, kept: NDArray[np.bool_], begin_s: float, longer: float, name: str) -> Trace:
    return make_trace(
        name,
        trace.arrival_s[kept] - begin_s,
        trace.service_s[kept] * longer,
        width=trace.width[kept],
        ram_gb=trace.ram_gb[kept],
        serial_fraction=trace.serial_fraction,
    )


@dataclass(frozen=True, slots=True)
class OwnLessons:
    """Yields lessons of one world: windows that begin anywhere, with some jobs left out and lengths moved a little.

    Exact branches know the future of their trace. Windows that never come twice alike keep a network from learning it
    by heart.
    """

    config: SimulationConfig
    rule: RuleSetting
    loads: Loads

    def __call__(self, first: int, count: int) -> Iterator[Lesson]:
        """Yield those of numbers from `first` on."""
        for number in range(first, first + count):
            yield Lesson(self.config, self._trace(number), self.rule, OWN_SEED + number)

    def _trace(self, number: int) -> Trace:
        rng, window_s = np.random.default_rng([number, 83]), self.loads.window_s
        spans = np.array([float(part.arrival_s.max()) + 1.0 for part in self.loads.parts])
        for _ in range(20):
            part = self.loads.parts[int(rng.choice(len(spans), p=spans / spans.sum()))]
            begin_s = rng.uniform(0.0, max(float(part.arrival_s.max()) - window_s, 0.0))
            kept = (part.arrival_s >= begin_s) & (part.arrival_s < begin_s + window_s)
            kept &= rng.random(part.jobs) >= rng.uniform(0.0, THINNED)
            if kept.sum() > 1:
                return _of(part, kept, begin_s, math.exp(SCALED * rng.standard_normal()), f"own-{number}")
        return self.loads.learnt[number % len(self.loads.learnt)]


def tuned_rule(config: SimulationConfig, loads: Loads, typical_core_s: float, spread: Map = map) -> RuleSetting:
    """Return the setting of the queue rule that costs least on windows that are learnt from.

    typical_core_s: of a job, where the world does not tell their work; 0 where it does.
    """
    every = max(len(loads.learnt) // MOST_TUNED_ON, 1)
    chosen = loads.learnt[::every][:MOST_TUNED_ON]
    horizons = sorted({*HORIZONS_S, RuleSetting().horizon_s})
    settings = [RuleSetting(horizon, idle, typical_core_s) for horizon, idle in product(horizons, IDLE_S)]
    costs = np.sum(list(spread(_rule_costs, [(config, trace, settings, k) for k, trace in enumerate(chosen)])), axis=0)
    return settings[int(costs.argmin())]


def _rule_costs(item: tuple[SimulationConfig, Trace, Sequence[RuleSetting], int]) -> Floats:
    config, trace, settings, number = item
    return np.array([BranchedEpisodes(config, trace, rule).play(RULE_SEED + number).cost for rule in settings])


Policy = tuple[tuple[Weights, ...], float, float]
"""Weights, margin and idle_limit_min."""
THE_RULE: Policy = (NO_WEIGHTS, 0.0, math.inf)


def costs_of(
    config: SimulationConfig,
    rule: RuleSetting,
    traces: Sequence[Trace],
    policies: Sequence[Policy],
    seed: int,
    boots: int,
    spread: Map,
) -> Floats:
    """Return dollars [policies, windows], the mean over `boots` seeds from `seed` on."""
    items = [(config, rule, trace, tuple(policies), seed + 1000 * k, boots) for k, trace in enumerate(traces)]
    return np.stack(list(spread(_window_costs, items)), axis=1)


def _window_costs(item: tuple[SimulationConfig, RuleSetting, Trace, Sequence[Policy], int, int]) -> Floats:
    config, rule, trace, policies, seed, boots = item
    episodes = BranchedEpisodes(config, trace, rule)
    rows = [
        [
            episodes.play(seed + boot, weights, margin=margin, idle_limit_min=idle_min).cost
            for weights, margin, idle_min in policies
        ]
        for boot in range(boots)
    ]
    found: Floats = np.mean(rows, axis=0)
    return found


@dataclass(frozen=True, slots=True)
class Judgement:
    """Chooses the margin on windows that were learnt from, and judges on those left out whether the result is used.

    start: what it is to replace; the queue rule where it is None.
    """

    config: SimulationConfig
    rule: RuleSetting
    loads: Loads
    start: Trained | None

    def __call__(self, trained: Trained, spread: Map) -> Trained:
        """Return what is used from now on, with the figures of the comparison."""
        idle_min = trained.idle_limit_min
        tried: list[Policy] = [(trained.weights, margin, idle_min) for margin in MARGINS]
        world = (self.config, self.rule)
        learnt = costs_of(*world, self.loads.learnt, [*tried, THE_RULE], MARGIN_SEED, 1, spread)
        shares = (learnt[:-1] / learnt[-1:]).mean(axis=1)
        margin = MARGINS[int(shares.argmin())] if shares.min() <= WORST else MARGINS[-1]
        before = THE_RULE
        if self.start is not None:
            before = (self.start.weights, self.start.margin, self.start.idle_limit_min)
        policies: list[Policy] = [(trained.weights, margin, idle_min), before, THE_RULE]
        ours, theirs, rule = costs_of(*world, self.loads.left_out, policies, JUDGING_SEED, BOOTS, spread)
        found = compare(ours, theirs)
        used = found.relative.mean < 0.0 and found.probability_lower >= SURE
        figures = {
            "gain": -found.relative.mean,
            "gain_low": -found.relative.high,
            "gain_high": -found.relative.low,
            "sure": found.probability_lower,
            "used": float(used),
            "ratio_before": float(theirs.sum() / rule.sum()),
            "ratio_after": float(ours.sum() / rule.sum()),
            "windows_learnt": float(len(self.loads.learnt)),
            "windows_left_out": float(len(self.loads.left_out)),
            "horizon_s": self.rule.horizon_s,
            "idle_s": self.rule.idle_s,
            "job_core_s": self.rule.job_core_s,
        }
        own = {f"own/{name}": float(value) for name, value in figures.items()}
        own[HELD_OUT] = own["own/ratio_after" if used or self.start is None else "own/ratio_before"]
        steps = {"own/simulator_steps": trained.figures["simulator_steps"]}
        if self.start is None:
            return replace(trained, margin=margin, figures={**trained.figures, **own, **steps})
        if not used:
            return replace(self.start, figures={**self.start.figures, **own, **steps})
        old = self.start
        return replace(
            trained,
            margin=margin,
            low=np.minimum(trained.low, old.low),
            high=np.maximum(trained.high, old.high),
            least=np.minimum(trained.least, old.least),
            greatest=np.maximum(trained.greatest, old.greatest),
            figures={**old.figures, **own, **steps},
        )


def own_plan(
    config: SimulationConfig, loads: Loads, rule: RuleSetting, recipe: Recipe, seed: int, start: Trained | None
) -> Plan:
    """Return the plan of a training on one's own loads; rule: see `tuned_rule`. start: None for one from nothing."""
    if start is not None:
        shape = start.weights[0].shape
        recipe = replace(recipe, hidden=shape[2], networks=shape[0], left_out=start.recipe.left_out)
        recipe = replace(recipe, idle_limit_min=start.idle_limit_min, margin=start.margin)
    facts = {
        "kind": "own loads",
        "world": plain(config),
        "rule": rule.name,
        "loads": loads.plain,
        "start": None if start is None else hash_of(start),
    }
    return Plan(recipe, seed, OwnLessons(config, rule, loads), facts, Judgement(config, rule, loads, start), start)
