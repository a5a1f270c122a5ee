"""Baselines no weaker than they need be: rules tuned on separate seeds, and the best constant fleet (§9)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from agent.settings.fleet import FleetSettings
from domain.errors import BadInput
from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import Measures
from trainer.autoscaling.baselines.clairvoyant import first_end_s
from trainer.autoscaling.policies import ConstantPolicy, parameters_of, run_policy
from trainer.autoscaling.policy_names import Task, run_task
from trainer.kit.jobs import HERE, Pool, Workers

HIGH = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
TARGETS = (0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
HORIZONS_S = (60, 90, 120, 150, 180, 210, 240, 270, 300, 360, 420, 480, 540, 600, 700, 800, 900, 1200, 1800, 3600)
IDLE_S = (0, 60, 120, 180, 300, 600)
SHORTER_S, LONGER_S = (10, 20, 40), (5400, 7200, 14_400, 28_800)
MOST_FLEETS = 200_000
"""Fixed fleets beyond this number are not tried one by one."""


def threshold_grid(config: SimulationConfig) -> list[str]:
    """High threshold 50-95 %, hysteresis none or down to 30 or 50 %, periods 1-3, warm-up on or off, cool-downs."""
    texts = []
    for high, low, periods, excluding, cooldown_s in itertools.product(
        HIGH, (None, 0.5, 0.3), (1, 2, 3), ("true", "false"), (0, 120, 300, 600)
    ):
        if low is not None and low >= high:
            continue
        lowest = high if low is None else low
        texts.append(
            f"threshold:high={high},low={lowest},periods={periods},exclude_warming={excluding},cooldown_s={cooldown_s}"
        )
    return texts


def target_tracking_grid(config: SimulationConfig) -> list[str]:
    """Target 30-90 %, minutes until a change out and in, warm-up on or off, groups that may go to none or not."""
    return [
        f"target-tracking:target={target},out_periods={out},in_periods={back},warmup_s={warmup_s},keep_one={keep}"
        for target, out, back, warmup_s, keep in itertools.product(
            TARGETS, (1, 3), (1, 3, 5, 15), (0, 300), ("true", "false")
        )
    ]


def queue_rule_grid(config: SimulationConfig, *, single: bool) -> list[str]:
    """Horizon, idle minutes, busy cores as cover or not; with a cool-down also which types are chosen among."""
    skips = ("false", "true") if config.cooldown_s > 0 else ("false",)
    return [
        f"queue-rule:horizon_s={horizon_s},idle_s={idle_s},single={str(single).lower()},busy_counts={busy},"
        f"skip_cooling={skip}"
        for horizon_s, idle_s, busy, skip in itertools.product(HORIZONS_S, IDLE_S, ("true", "false"), skips)
    ]


def fixed_ramp_grid(config: SimulationConfig, *, single: bool) -> list[str]:
    """Fixed fleets of every size, a few numbers of VMs per type."""
    counts = []
    for low, limit in zip(config.minimum, config.limits, strict=True):
        counts.append(sorted({n for n in (0, 1, 2, 3, 4, 6, 8, 10, limit) if low <= n <= limit}))
    return [
        f"fixed-ramp:{','.join(map(str, sizes))},single={str(single).lower()}"
        for sizes in itertools.product(*counts)
        if any(sizes)
    ]


def count_fleets(config: SimulationConfig) -> int:
    """Return how many fixed fleets a world has."""
    return math.prod(limit - low + 1 for low, limit in zip(config.minimum, config.limits, strict=True))


GRIDS: Mapping[str, Callable[[SimulationConfig], list[str]]] = {
    "queue-rule": lambda config: queue_rule_grid(config, single=False),
    "queue-rule-single": lambda config: queue_rule_grid(config, single=True),
    "threshold": threshold_grid,
    "target-tracking": target_tracking_grid,
    "fixed-ramp": lambda config: fixed_ramp_grid(config, single=False),
    "fixed-ramp-single": lambda config: fixed_ramp_grid(config, single=True),
}
"""Policy to tune, and the texts of its grid for a world; `-single` is one VM a minute (act-7)."""


TUNING_SEED = 500_000
"""Seeds from here on tune; 0..999 report; training and selection use neither."""
FINALISTS = 12
FIRST_SEEDS = 2
"""Seeds that the whole grid is run on; its best FINALISTS are run on all."""


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of runs: a world, and for each seed a trace of each workload, seed by seed.

    workloads: how many there are.
    """

    config: SimulationConfig
    traces: tuple[Trace, ...]
    seeds: tuple[int, ...]
    workloads: int = 1

    def first(self, count: int) -> Cases:
        """Return those of the first `count` seeds."""
        kept = count * self.workloads
        return Cases(self.config, self.traces[:kept], self.seeds[:kept], self.workloads)


TraceOf = Callable[[int], Trace]


def cases_of(config: SimulationConfig, trace_of: TraceOf | Sequence[TraceOf], first_seed: int, count: int) -> Cases:
    """Return the cases of `count` seeds, the traces and the boot times of each drawn from the seed.

    trace_of: the trace of a seed, or of several workloads.
    """
    if count < 1:
        raise BadInput("seeds", count, "give 1 or more")
    each = tuple(trace_of) if isinstance(trace_of, Sequence) else (trace_of,)
    seeds = tuple(seed for seed in range(first_seed, first_seed + count) for _ in each)
    traces = tuple(made(seed) for seed in range(first_seed, first_seed + count) for made in each)
    return Cases(config, traces, seeds, len(each))


@dataclass(frozen=True, slots=True)
class Objective:
    """The figure to minimise: cost (rent and waiting), or with minute_price rent and these dollars per minute of run.

    A run that did not finish its jobs counts as infinitely bad.
    """

    minute_price: float = 0.0

    def of(self, run: Measures, jobs: int) -> float:
        """Return dollars."""
        if run.jobs_finished < jobs:
            return float("inf")
        return run.rent + self.minute_price * run.run_time_s / MINUTE_S if self.minute_price > 0 else run.cost


@dataclass(frozen=True, slots=True)
class SettingCost:
    """One setting and its mean objective over tuning seeds."""

    policy: str
    objective: float


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The best setting, its figures on the reporting seeds, and the finalists it was chosen from, best first."""

    policy: str
    objective: float
    runs: tuple[Measures, ...]
    finalists: tuple[SettingCost, ...]
    settings: int


def tune(
    name: str,
    tuning: Cases,
    reporting: Cases,
    *,
    objective: Objective | None = None,
    workers: Workers = HERE,
    on_run: Callable[[int, int], None] | None = None,
    adapt: Callable[[str], str | None] = lambda text: text,
    widen: bool = False,
) -> TuningResult:
    """Search the grid of a policy of GRIDS on `tuning`, and run the best setting on `reporting`.

    The whole grid is run on the first FIRST_SEEDS seeds, the best FINALISTS on all. on_run: called with the runs done
    and to do. adapt: changes each text of the grid, or leaves it out with None. widen: where the best horizon of a
    queue rule is the shortest or longest of the grid, try those beyond. Raises BadInput for a policy without a grid, or
    when tuning and reporting share a seed.
    """
    if name not in GRIDS:
        raise BadInput("policy", name, f"choose one of {', '.join(GRIDS)}")
    if set(tuning.seeds) & set(reporting.seeds):
        raise BadInput("seeds", tuning.seeds[0], "tune on other seeds than those reported")
    objective = objective or Objective()
    grid = [text for text in map(adapt, GRIDS[name](tuning.config)) if text is not None]
    few = tuning.first(FIRST_SEEDS)
    total = len(grid) * len(few.seeds) + FINALISTS * len(tuning.seeds) + len(reporting.seeds)
    done = itertools.count(1)

    def measure(policies: Sequence[str], cases: Cases) -> list[Measures]:
        found = []
        tasks = _tasks(policies, cases)
        for run in pool.run(tasks, None):
            found.append(run)
            if on_run is not None:
                on_run(next(done), total)
        return found

    with Pool(run_task, replace(workers, expected=total), name=lambda task: f"{task[0]}, seed {task[3]}") as pool:
        first = _ranked(measure, grid, few, objective)
        finalists = _ranked(measure, [tried.policy for tried in first[:FINALISTS]], tuning, objective)
        beyond = _beyond(finalists[0].policy) if widen else []
        total += len(beyond) * len(tuning.seeds)
        if beyond:
            finalists = sorted([*finalists, *_ranked(measure, beyond, tuning, objective)], key=lambda t: t.objective)
        best = finalists[0]
        runs = tuple(measure([best.policy], reporting))
    return TuningResult(best.policy, best.objective, runs, tuple(finalists), len(grid) + len(beyond))


def _beyond(policy: str) -> list[str]:
    """Return a queue rule at the end of the grid with horizons beyond it, else nothing."""
    ends = {f"horizon_s={HORIZONS_S[0]}": SHORTER_S, f"horizon_s={HORIZONS_S[-1]}": LONGER_S}
    pair = next((part for part in policy.partition(":")[2].split(",") if part in ends), None)
    return [] if pair is None else [policy.replace(pair, f"horizon_s={horizon_s}") for horizon_s in ends[pair]]


Measure = Callable[[Sequence[str], Cases], list[Measures]]
"""Runs policies on cases: the cases of the first policy, then those of the next."""


def _tasks(policies: Sequence[str], cases: Cases) -> list[Task]:
    pairs = list(zip(cases.traces, cases.seeds, strict=True))
    return [(policy, cases.config, trace, seed) for policy in policies for trace, seed in pairs]


def _ranked(measure: Measure, policies: Sequence[str], cases: Cases, objective: Objective) -> list[SettingCost]:
    """Return the settings by mean objective; equals stay in the order of the grid."""
    values = [
        objective.of(run, trace.jobs)
        for run, trace in zip(measure(policies, cases), cases.traces * len(policies), strict=True)
    ]
    each = len(cases.seeds)
    found = [SettingCost(policy, fmean(values[at * each : (at + 1) * each])) for at, policy in enumerate(policies)]
    return sorted(found, key=lambda tried: tried.objective)


Fleet = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BestConstant:
    """The fleet, its mean cost in dollars over the traces, and how many fleets there were and were run."""

    sizes: Fleet
    cost: float
    fleets: int
    tried: int


def best_constant(
    config: SimulationConfig, traces: Sequence[Trace], on_fleet: Callable[[int, int], None] | None = None
) -> BestConstant:
    """Return the constant fleet with the least mean cost; nothing is random, for a constant fleet boots nothing.

    Fleets are tried from the cheapest on, until the rent alone of the rest is above the best cost. Where every type
    costs the same per core and all jobs take one core, one fleet represents all of as many cores. on_fleet:
    called with the number of fleets done and of all.
    """
    fleets = sorted(_fleets(config, traces), key=lambda sizes: price_per_hour(config, sizes))
    best: tuple[float, Fleet] | None = None
    tried = 0
    for done, sizes in enumerate(fleets, start=1):
        if best is None or least_rent(config, sizes, traces) < best[0]:
            runs = [run_policy(ConstantPolicy(sizes), config, trace) for trace in traces]
            tried += 1
            cost = fmean(Objective().of(run, trace.jobs) for run, trace in zip(runs, traces, strict=True))
            if best is None or cost < best[0]:
                best = (cost, sizes)
        if on_fleet is not None:
            on_fleet(done, len(fleets))
    if best is None:
        raise ValueError("a configuration allows at least one fleet")
    return BestConstant(best[1], best[0], len(fleets), tried)


def price_per_hour(config: SimulationConfig, sizes: Fleet) -> float:
    """Return the dollars per hour of a fleet."""
    return sum(n * kind.price_per_hour for n, kind in zip(sizes, config.types, strict=True))


def least_rent(config: SimulationConfig, sizes: Fleet, traces: Sequence[Trace]) -> float:
    """Return dollars that a constant fleet costs at least on average: its rent until the work can be done."""
    cores = sum(n * c * v for n, c, v in zip(sizes, config.cores, config.speeds, strict=True))
    shortest_s = [
        max(0.0 if trace.staged else first_end_s(config, trace), trace.work_core_s / cores) for trace in traces
    ]
    return price_per_hour(config, sizes) * fmean(shortest_s) / HOUR_S


def _fleets(config: SimulationConfig, traces: Sequence[Trace]) -> list[Fleet]:
    """Return the fleets that may be best, each with a core at least."""
    ranges = [range(low, high + 1) for low, high in zip(config.minimum, config.limits, strict=True)]
    every = [sizes for sizes in itertools.product(*ranges) if any(sizes)]
    per_core = {round(kind.price_per_hour / kind.cores, 9) for kind in config.types}
    alike = len(per_core) == 1 and len(set(config.speeds)) == 1
    if not (alike and all((trace.width == 1).all() for trace in traces)):
        return every
    by_cores: dict[int, Fleet] = {}
    for sizes in sorted(every, key=sum):
        by_cores.setdefault(sum(n * c for n, c in zip(sizes, config.cores, strict=True)), sizes)
    return list(by_cores.values())


# A tuned rule as settings of the agent, with its origin.


AGENT_RULES: tuple[str, ...] = ("queue-rule", "queue-rule-single", "threshold", "target-tracking")
"""The rules to tune that the agent has too."""
_LIVE: Mapping[str, Mapping[str, str]] = {
    "queue-rule": {"busy_counts": "true", "skip_cooling": "false"},
    "threshold": {"cooldown_s": "0"},
    "target-tracking": {"warmup_s": "300", "keep_one": "false"},
}
"""Parameters that the agent has no setting for, with the value at which it behaves alike."""


def agent_grid(text: str) -> bool:
    """Return whether the agent can decide as this text of a grid does."""
    name, _, rest = text.partition(":")
    given = parameters_of(name, rest)
    return all(given.get(parameter, value) == value for parameter, value in _LIVE.get(name, {}).items())


def settings_of(policy: str, fleet: str) -> dict[str, str]:
    """Return the agent's settings for a rule, as environment variables to values.

    The agent learns the size of jobs from its job source; a setting applies until then. Raises BadInput for a policy
    that the agent does not have.
    """
    name, _, rest = policy.partition(":")
    if name not in _LIVE:
        raise BadInput("policy", policy, f"choose one of {', '.join(_LIVE)}: the agent has no other rule")
    prefix = f"TRIMTAB_FLEETS__{fleet}__"
    known = FleetSettings.model_fields
    section = name.replace("-", "_")
    parameters = known[section].annotation
    assert parameters is not None
    found = {f"{prefix}POLICY": name}
    for parameter, value in parameters_of(name, rest).items():
        if parameter in parameters.model_fields:
            found[f"{prefix}{section.upper()}__{parameter.upper()}"] = value
        elif parameter in known:
            found[f"{prefix}{parameter.upper()}"] = value
    return found


def settings_text(policy: str, fleet: str, made_by: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Return lines for the agent's environment: comments with their origin, then NAME=VALUE.

    made_by: the command, the world and the workloads with their SHA-256, and the seeds. figures: `tuned_objective`,
    `cost`, `rent` and `penalty`, dollars.
    """
    world, (first, last) = made_by["world"], made_by["tuning_seeds"]
    lines = [
        f"# Found by: {made_by['command']}",
        f"# World {world['name']}, SHA-256 {world['sha256']}",
        *(f"# Workload {one['workload']}, SHA-256 {one['sha256']}" for one in made_by["workloads"]),
        f"# The least of {figures['settings']} settings on seeds {first} to {last}: {figures['tuned_objective']:.4f} $",
        f"# On seeds {made_by['reporting_seeds'][0]} to {made_by['reporting_seeds'][1]}: {figures['cost']:.4f} $, rent "
        f"{figures['rent']:.4f} $, waiting {figures['penalty']:.4f} $",
        *(f"{name}={value}" for name, value in settings_of(policy, fleet).items()),
    ]
    return "\n".join(lines) + "\n"
