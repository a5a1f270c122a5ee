"""Named training tasks: which world, which traces, in which order, and on what the best checkpoint is chosen.

Seeds are kept apart: training draws from 1,000,000 and more, the choice of checkpoints from 900,000 to 900,999, and
results are reported on 0 to 999 (autoscaler specification §10, §11, §12.6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.workload import DEFAULT_RAM_GB, Trace, make_trace
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.reference import SimulationConfig, preset
from simulator.autoscaling.reference.configuration import Billing, Dispatch
from simulator.workloads.synthetic import coevolution, train_fit, train_rand, train_text
from trainer.autoscaling.episodes import run_many
from trainer.autoscaling.release_mixture import Mixture, mixture
from trainer.autoscaling.rollout import Worlds

TRAINING_SEED, SELECTION_SEED = 1_000_000, 900_000
RANDOM_TRACES, SELECTION_TRACES = 256, 16
IDLE_TAIL_S, BURST_SIZE = 4 * 3600.0, 10
RELEASE_TRACES = 48
"""Per family of `trainer.autoscaling.release_mixture`."""
RELEASE_PAR = "queue-rule:horizon_s=300,idle_s=0,skip_cooling=true"
"""The queue rule, tuned on random traces in the live-like world (seeds 500,000 to 500,023)."""


class MakeWorlds(Protocol):
    """Makes B copies of a world over traces, to be reset before use; see `kernel_worlds`."""

    def __call__(
        self, config: SimulationConfig, traces: tuple[Trace, ...], copies: int, *, observation: str, actions: str
    ) -> Worlds:
        """Return the copies."""


def kernel_worlds(
    config: SimulationConfig, traces: tuple[Trace, ...], copies: int, *, observation: str, actions: str
) -> Worlds:
    """Return copies that run in the compiled simulator."""
    return AutoscalingBatch(config, traces, copies, observation=observation, actions=actions)


@dataclass(frozen=True, slots=True)
class Stage:
    """One world with its traces, each drawn with its share in `weights`, until `until` (0..1) of all steps are done.

    scales: dollars per trace by which its rewards are divided, so that large loads do not count for more; none for 1.
    """

    config: SimulationConfig
    traces: tuple[Trace, ...]
    weights: tuple[float, ...] = ()
    until: float = 1.0
    scales: tuple[float, ...] = ()

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Chance of each trace."""
        weights = np.asarray(self.weights or (1.0,) * len(self.traces))
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares

    @property
    def jobs(self) -> tuple[int, ...]:
        """Jobs of each trace."""
        return tuple(trace.jobs for trace in self.traces)


@dataclass(frozen=True, slots=True)
class Task:
    """What to learn: stages in order; the last one's world with `selection` traces judges checkpoints.

    progress_reward, time_price_per_minute: dollars, added to what the configuration of a run asks for (§18: with a
    discount below 1 a closed loop rewards delay unless progress is paid and time has a price). par, families: of each
    selection trace, what a rule pays for it, and what it is an example of; checkpoints are then chosen by the ratio.
    """

    name: str
    stages: tuple[Stage, ...]
    selection: tuple[Trace, ...]
    progress_reward: float = 0.0
    time_price_per_minute: float = 0.0
    par: tuple[float, ...] = ()
    families: tuple[str, ...] = ()

    @property
    def world(self) -> SimulationConfig:
        """The configuration that the policy is meant for."""
        return self.stages[-1].config

    def stage_at(self, share: float) -> int:
        """Return which stage is on after a share (0..1) of all steps."""
        return next((k for k, stage in enumerate(self.stages) if share < stage.until), len(self.stages) - 1)


def _one(name: str, trace: Trace) -> Task:
    return Task(name, (Stage(preset(name), (trace,)),), (trace,))


def _random_traces(first: int, count: int) -> tuple[Trace, ...]:
    return tuple(train_rand(first + k) for k in range(count))


def _train_rand() -> Task:
    stage = Stage(preset("train-rand"), _random_traces(TRAINING_SEED, RANDOM_TRACES))
    return Task("train-rand", (stage,), _random_traces(SELECTION_SEED, SELECTION_TRACES))


def _coevolution() -> Task:
    stage = Stage(preset("paper-live"), tuple(coevolution(TRAINING_SEED + k) for k in range(64)))
    selection = tuple(coevolution(SELECTION_SEED + k) for k in range(SELECTION_TRACES))
    return Task("coevolution", (stage,), selection, progress_reward=10.0, time_price_per_minute=0.03)


def _coevolution_rent() -> Task:
    """Rent against run time, as the published experiment is told (§11): waiting is free, minutes have a price.

    With both priced the waiting penalty favours many small VMs, which hold more jobs at once but end no sooner. What a
    minute costs, and what progress is paid, is the run's: see the preset `coevolution`.
    """
    made = _coevolution()
    stage = replace(made.stages[0], config=preset("paper-live", waiting_price_per_hour=0.0))
    return Task("coevolution-rent", (stage,), made.selection)


def with_idle_tail(trace: Trace, tail_s: float = IDLE_TAIL_S) -> Trace:
    """Return the trace with one short last job `tail_s` after the last arrival, so that idling is part of the episode.

    Only for traces whose jobs all have fixed arrivals.
    """
    return _joined(f"{trace.name}-idle", trace, np.array([trace.arrival_s.max() + tail_s]), np.array([60.0]))


def with_burst(trace: Trace, seed: int, size: int = BURST_SIZE) -> Trace:
    """Return the trace with one more batch, `size` times its mean batch, at a moment drawn from `seed`."""
    rng = np.random.default_rng(seed)
    batches = np.unique(trace.arrival_s).size
    jobs = max(size * trace.jobs // batches, 1)
    at = rng.uniform(0.1, 0.9) * trace.arrival_s.max()
    return _joined(f"{trace.name}-burst", trace, np.full(jobs, at), rng.choice(trace.service_s, size=jobs))


def _joined(name: str, trace: Trace, arrival_s: NDArray[np.float64], service_s: NDArray[np.float64]) -> Trace:
    extra = arrival_s.size
    return make_trace(
        name,
        np.concatenate([trace.arrival_s, arrival_s]),
        np.concatenate([trace.service_s, service_s]),
        width=np.concatenate([trace.width, np.ones(extra, dtype=np.int64)]),
        ram_gb=np.concatenate([trace.ram_gb, np.full(extra, DEFAULT_RAM_GB)]),
    )


def _mixture(first: int, count: int) -> tuple[Trace, ...]:
    """Return random traces: half plain, a quarter with an idle tail, a quarter with a burst."""
    plain = _random_traces(first, count)
    tails = [with_idle_tail(trace) for trace in plain[: count // 2 : 2]]
    bursts = [with_burst(trace, first + k) for k, trace in enumerate(plain[1 : count // 2 : 2])]
    return (*plain[count // 2 :], *tails, *bursts)


def _live_like() -> Task:
    stage = Stage(preset("live-like"), (*_mixture(TRAINING_SEED, RANDOM_TRACES), train_text(), train_fit()))
    return Task("live-like", (stage,), _mixture(SELECTION_SEED, SELECTION_TRACES))


def _release(name: str, world: SimulationConfig) -> Task:
    """The policy that ships: every family of load, none weighing more than its share, chosen where it is worst."""

    def par(made: Mixture, first_seed: int) -> tuple[float, ...]:
        runs = (run_many(RELEASE_PAR, world, (trace,), (first_seed + k,))[0] for k, trace in enumerate(made.traces))
        return tuple(run.cost for run in runs)

    shown = mixture(TRAINING_SEED, RELEASE_TRACES, world.max_cores)
    held = mixture(SELECTION_SEED, SELECTION_TRACES // 2, world.max_cores)
    stage = Stage(world, shown.traces, shown.weights, scales=par(shown, TRAINING_SEED))
    return Task(name, (stage,), held.traces, par=par(held, SELECTION_SEED), families=held.families)


def dry_run_world() -> SimulationConfig:
    """Return the world of the dry run's fleet: 3 VMs of each type at most, jobs spread as by workers that pull them."""
    return preset(
        "live-like",
        limits=(3, 3, 3),
        initial=(1, 0, 0),
        dispatch=Dispatch.NEXT_FIT,
        billing=Billing.EXACT,
        integral_penalty=True,
    )


def _curriculum() -> Task:
    """Fixed batches first, then random ones, then random ones with a cool-down (§10)."""
    randoms = _random_traces(TRAINING_SEED, RANDOM_TRACES)
    stages = (
        Stage(preset("train-fit"), (train_fit(),), until=0.15),
        Stage(preset("train-text"), (train_text(),), until=0.3),
        Stage(preset("train-rand"), randoms, until=0.65),
        Stage(preset("train-rand", cooldown_s=300.0), randoms),
    )
    return Task("curriculum", stages, _random_traces(SELECTION_SEED, SELECTION_TRACES))


TASKS: Mapping[str, Callable[[], Task]] = MappingProxyType(
    {
        "train-text": lambda: _one("train-text", train_text()),
        "train-fit": lambda: _one("train-fit", train_fit()),
        "train-rand": _train_rand,
        "coevolution": _coevolution,
        "coevolution-rent": _coevolution_rent,
        "live-like": _live_like,
        "curriculum": _curriculum,
        "release": lambda: _release("release", preset("live-like")),
        "release-small": lambda: _release("release-small", dry_run_world()),
    }
)


@cache
def task_of(name: str) -> Task:
    """Return a task by name; BadInput lists what there is."""
    if name not in TASKS:
        raise BadInput("task", name, f"choose one of {', '.join(TASKS)}")
    return TASKS[name]()
