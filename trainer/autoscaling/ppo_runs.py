"""Training runs of PPO, from configurations to model files: presets, a run, a campaign of several with its curves.

A campaign's directory has `summary.json` and, for each configuration, `curves.svg` and a directory per seed; with a
grid, each configuration has a directory named after its settings. Results are reported on seeds that nothing was chosen
by.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_rand
from trainer.autoscaling.environments import as_taken, play
from trainer.autoscaling.evaluation.contenders import baselines
from trainer.autoscaling.evaluation.suite import World
from trainer.autoscaling.export import PolicyFacts, answer_of, export, layers_of
from trainer.autoscaling.policy_names import run_many, stuck
from trainer.autoscaling.ppo_lstm import Player, PolicyValueNetwork, PPOConfig, TrainingResult, train, worlds_of
from trainer.autoscaling.tasks import FAMILIES, mixture, task_of
from trainer.kit.checkpoint import (
    FACTS_FILE,
    Checkpoint,
    Checkpoints,
    config_hash,
    package_versions,
    read_checkpoint,
    weights_hash,
)
from trainer.kit.drawing import SOFT, panel, picture
from trainer.kit.fields import changes_of
from trainer.kit.files import write_json
from trainer.kit.intervals import Interval, mean_interval
from trainer.kit.jobs import Job, grid_of
from trainer.kit.parallel import Crew, run_together
from trainer.kit.progress import CURVE_FILE, SILENT, column, read_curve
from trainer.kit.runs import CURVES_FILE, RUN_FILE, SUMMARY_FILE, checkpoints_of, listeners

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Presets.


PRESETS: Mapping[str, PPOConfig] = MappingProxyType(
    {
        "default": PPOConfig(),
        "ppo-lstm-published": PPOConfig(
            masked=False,
            forget_bias=0.0,
            environments=16,
            steps_per_update=128,
            warm_steps=0,
            minibatches=4,
            gamma=0.99,
            clip=0.1,
            value_clip=0.1,
            anneal_clip=True,
            entropy_coefficient=0.01,
            learning_rate=2.5e-4,
            target_kl=0.0,
        ),
        "train-fit": PPOConfig(
            total_steps=2_000_000,
            observation="obs-v2",
            evaluate_every_steps=65_536,
            selection_episodes=32,
        ),
        "train-text": PPOConfig(
            task="train-text",
            total_steps=2_000_000,
            observation="obs-v2",
            environments=128,
            steps_per_update=128,
            minibatches=4,
            entropy_coefficient=0.01,
            anneal_entropy=True,
            evaluate_every_steps=65_536,
            selection_episodes=32,
        ),
        "coevolution-rent": PPOConfig(
            task="coevolution-rent",
            total_steps=1_000_000,
            observation="obs-v2",
            action_set="act-multi",
            hidden=64,
            environments=256,
            warm_steps=192,
            most_episode_steps=400,
            minibatches=4,
            gamma=0.99,
            value_clip=0.0,
            progress_reward=13.5,
            time_price_per_minute=0.03,
            evaluate_every_steps=65_536,
            selection_episodes=32,
        ),
    }
)
"""`ppo-lstm-published`: the statements of the publication, and for the rest the discrete-action defaults of the code
that it names. The others are named after the tasks that they were found for: the cheapest policies of train-fit and
train-text; of coevolution-rent the least rent where a minute of the closed loop costs three cents. There progress is
paid the cost of such an episode, so that neither haste nor delay pays; for other prices: 14.9 at four cents, 11.5 at
two."""


def configuration(preset: str = "default", **changes: Any) -> PPOConfig:
    """Return a preset with some fields changed; BadInput names the known ones."""
    if preset not in PRESETS:
        raise BadInput("preset", preset, f"choose one of {', '.join(PRESETS)}")
    known = {known_field.name for known_field in fields(PPOConfig)}
    for name in changes:
        if name not in known:
            raise BadInput("field", name, f"choose one of {', '.join(sorted(known))}")
    return replace(PRESETS[preset], **changes)


# A run.


EPISODES = 30
"""Reported episodes: seeds from 0 on (autoscaler specification §11)."""

GOALS = ("best constant fleet", "threshold, tuned", "queue rule, one action", "queue rule, multi")
"""The baselines of an evaluation that a run is compared with."""
_GROUPS: Mapping[str, str] = MappingProxyType({"train-text": "T1", "train-fit": "T2", "coevolution-rent": "T4"})
"""The group of the evaluation suite that a task resembles; T3 for the others."""
RENT_AND_TIME = "coevolution-rent"
_TRAINING_WORLD = ("train-text", "train-fit", "train-rand")


def baselines_of(task: str) -> dict[str, str]:
    """Return the policies that a task is measured against, by label."""
    own = task_of(task).rule
    if own:
        return {"queue rule": own, "threshold": "threshold:high=0.75,low=0.75,periods=1"}
    world = World.TRAINING if task in _TRAINING_WORLD else World.LIVE_LIKE
    group = _GROUPS.get(task, "T3")
    known = {contender.label: contender.text(group) for contender in baselines(world)}
    # A fleet that is best for random traces is not the best for other loads and limits.
    named = GOALS[1:] if task_of(task).families else GOALS
    return {label: text for label in named if (text := known.get(label)) is not None}


def marks_of(task: str, costs: Mapping[str, float]) -> dict[str, float]:
    """Return the marks of a task's held-out figure: the baselines' costs, or 1 where it is relative.

    Nothing where it is rent and priced minutes, which is another figure than the cost that is reported.
    """
    if task == RENT_AND_TIME:
        return {}
    return {"queue rule": 1.0} if task_of(task).par else dict(costs)


def held_out_unit(task: str) -> str:
    """Return the unit of a task's held-out figure."""
    if task == RENT_AND_TIME:
        return "rent and priced minutes, $ an episode"
    return "cost, times the queue rule's" if task_of(task).par else "cost, $ an episode"


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes in one world: a trace and a boot seed each."""

    world: SimulationConfig
    traces: tuple[Trace, ...]
    seeds: tuple[int, ...]


def reported(task: str, count: int = EPISODES) -> Episodes:
    """Return the episodes that a task's results are reported on; BadInput for an unknown task."""
    known = task_of(task)
    seeds = tuple(range(count))
    if known.report:
        return Episodes(known.world, tuple(itertools.islice(itertools.cycle(known.report), count)), seeds)
    if _GROUPS.get(task) == "T4":
        # Reported at its full cost, with a price of waiting too.
        return Episodes(preset("paper-live"), tuple(coevolution(seed) for seed in seeds), seeds)
    if len(known.selection) == 1:
        traces = known.selection * count
    elif known.families:
        traces = mixture(0, -(-count // len(FAMILIES)), known.world.max_cores)[:count]
    else:
        traces = tuple(train_rand(seed) for seed in seeds)
    return Episodes(known.world, traces, seeds)


def baseline_costs(
    task: str, episodes: Episodes, on_stuck: Callable[[str, str], None] = lambda name, why: None
) -> dict[str, float]:
    """Return the mean cost, dollars an episode, of the task's baselines.

    A stuck baseline is left out: on_stuck is called with its name and the reason.
    """
    costs = {}
    for name, text in baselines_of(task).items():
        runs = run_many(text, episodes.world, episodes.traces, episodes.seeds)
        pairs = zip(runs, itertools.cycle(episodes.traces), strict=False)
        why = stuck(text, runs, sum(run.jobs_finished < trace.jobs for run, trace in pairs))
        if why:
            on_stuck(name, why)
        else:
            costs[name] = sum(run.cost for run in runs) / len(runs)
    return costs


Floats = NDArray[np.float32]

_COPIES, _STEPS, _SEED = 64, 600, 2_000_000_000
"""Copies and steps that are played for the ranges, and their boot seeds, which nothing else uses."""


def greedy_costs(network: PolicyValueNetwork, config: PPOConfig, episodes: Episodes) -> list[float]:
    """Return the cost, dollars, of each episode played greedily to its end, however late that is in its world."""
    count = len(episodes.seeds)
    worlds = AutoscalingBatch(
        episodes.world, episodes.traces, count, observation=config.observation, actions=config.action_set
    )
    player = Player(worlds, network, count, config.masked, np.random.default_rng(0))
    seeds, greedy = np.array(episodes.seeds, dtype=np.int64), np.ones(count, dtype=np.bool_)
    costs, _ = play(worlds, player.choose, seeds, np.arange(count), greedy, episodes.world.max_steps)
    return [float(cost) for cost in costs]


def feature_ranges(network: PolicyValueNetwork, config: PPOConfig) -> tuple[Floats, Floats]:
    """Return the lowest and highest value of each feature as training meets them, each of shape (F,).

    Taken from sampled actions of untrained weights, with which training begins, and of the network's, with which it
    ends, in every world of the task.
    """
    untrained = PolicyValueNetwork(network.kind, network.features, network.logits, config.hidden, seed=config.seed)
    seen = [
        _seen(player, config, stage.config, stage.traces)
        for stage in task_of(config.task).stages
        for player in (untrained, network)
    ]
    low = np.min([rows.min(axis=(0, 1)) for rows in seen], axis=0)
    high = np.max([rows.max(axis=(0, 1)) for rows in seen], axis=0)
    return low, high


def _seen(network: PolicyValueNetwork, config: PPOConfig, world: SimulationConfig, traces: tuple[Trace, ...]) -> Floats:
    """Return the observations of sampled episodes, shape (steps, copies, F); ended episodes begin again."""
    rng, drawn = np.random.default_rng(config.seed), np.zeros(_COPIES, dtype=np.bool_)
    worlds = worlds_of(config, AutoscalingBatch, world, traces, _COPIES)
    player = Player(worlds, network, _COPIES, config.masked, rng)
    which = np.arange(_COPIES) * len(traces) // _COPIES
    observations = worlds.reset(_SEED + which, which)
    seen = np.empty((_STEPS, _COPIES, worlds.n_features), dtype=np.float32)
    for step in range(_STEPS):
        seen[step] = observations
        observations, _, terminated, truncated = worlds.step(as_taken(player.choose(observations, drawn)))
        over = terminated | truncated
        if over.any():
            which[over] = rng.integers(len(traces), size=int(over.sum()))
            observations = worlds.reset_where(over, _SEED + step + which, which)
            player.actor.forget(over)
    return seen


HELD_OUT = "held_out/greedy"
"""The figure by which the best checkpoint is chosen."""
_OF_A_WORKER = ("collector", "scale", "rank")
_MOST_TRACES_NAMED = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One training run. goals: cost by baseline on the reported episodes. marks: shown with the held-out figure.

    episodes: number of reported ones. show: bar, lines or silent.
    """

    name: str
    config: PPOConfig
    directory: Path
    goals: Mapping[str, float] = field(default_factory=dict)
    marks: Mapping[str, float] = field(default_factory=dict)
    episodes: int = EPISODES
    show: str = SILENT

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Run:
        """Return the run of a job's data."""
        return cls(**{**data, "config": PPOConfig(**data["config"]), "directory": Path(data["directory"])})

    @property
    def data(self) -> dict[str, Any]:
        """Plain data of a job, so that any process can be asked."""
        fields_of = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**fields_of, "config": self.config.plain(), "directory": str(self.directory)}


@dataclass(frozen=True, slots=True)
class Report:
    """Cost of a policy on the reported episodes: mean and 95 % interval, dollars an episode."""

    episodes: int
    cost: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """The content of `run.json`. selection_cost: least held-out cost. model: file name of the best checkpoint."""

    name: str
    config: Mapping[str, Any]
    steps: int
    wall_s: float
    cpu_s: float
    weights_hash: str
    selection_cost: float
    model: str
    report: Report
    goals: Mapping[str, float]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RunResult:
        """Return the result of its data."""
        return cls(**{**data, "report": Report(**data["report"])})


def run(data: Mapping[str, Any]) -> dict[str, Any]:
    """Do the run of a job's data, and return its result as data."""
    return asdict(train_run(Run.of(data)))


def train_run(run: Run) -> RunResult:
    """Train from the last checkpoint where there is one, export the best one, and write `run.json`."""
    run.directory.mkdir(parents=True, exist_ok=True)
    trained = run_together(run.config.workers, partial(_lead, run), partial(_follow, run))
    checkpoints = checkpoints_of(run.directory)
    best, last = checkpoints.best(), checkpoints.last()
    if best is None or last is None or trained.best_cost is None:
        raise BadInput("total_steps", run.config.total_steps, "give enough steps for one evaluation")
    model, report = export_best(run.config, best, run.directory, run.episodes)
    result = RunResult(
        name=run.name,
        config=run.config.plain(),
        steps=trained.steps,
        wall_s=last.progress["wall_s"],
        cpu_s=last.progress["cpu_s"],
        weights_hash=trained.weights_hash,
        selection_cost=trained.best_cost,
        model=model.name,
        report=report,
        goals=dict(run.goals),
    )
    write_json(run.directory / RUN_FILE, asdict(result))
    return result


def _lead(run: Run, crew: Crew) -> TrainingResult:
    """Train as the worker that evaluates, saves and reports."""
    checkpoints = checkpoints_of(run.directory)
    resume = checkpoints.last()
    with listeners(run.data, resume, HELD_OUT) as listener:
        more: dict[str, Any] = {"on_update": listener, "on_phase": listener.phase, "checkpoints": checkpoints}
        return train(run.config, resume=resume, crew=crew, **more)


def _follow(run: Run, crew: Crew) -> TrainingResult:
    """Train as another worker, with separate experience, and the weights and counts of the leading one."""
    resume, mine = checkpoints_of(run.directory).last(), checkpoints_of(run.directory, crew.rank)
    own = mine.last()
    if resume is not None and own is not None:
        resume = replace(resume, state={**resume.state, **{name: own.state[name] for name in _OF_A_WORKER}})
    return train(run.config, resume=resume, checkpoints=mine, crew=crew)


def export_checkpoint(checkpoint: Checkpoint, directory: Path, episodes: int = EPISODES) -> tuple[Path, Report]:
    """Write a checkpoint's best policy as a model file, and return its path and its cost on the reported episodes.

    BadInput for a checkpoint with settings that this version does not have.
    """
    known = {field.name for field in fields(PPOConfig)}
    if unknown := sorted(checkpoint.config.keys() - known):
        raise BadInput("checkpoint", ", ".join(unknown), "settings of another version: train it again")
    return export_best(PPOConfig(**checkpoint.config), checkpoint, directory, episodes)


def export_best(config: PPOConfig, checkpoint: Checkpoint, directory: Path, episodes: int) -> tuple[Path, Report]:
    """Write the best policy of a run with this configuration; see `export_checkpoint`."""
    network = network_of(config, checkpoint.state["best_weights"])
    costs = greedy_costs(network, config, reported(config.task, episodes))
    interval = mean_interval(costs)
    report = Report(len(costs), interval.mean, interval.low, interval.high)
    learned = replace(
        learned_of(config),
        training={
            "config": dict(checkpoint.config),
            "config_hash": config_hash(checkpoint.config),
            "seed": config.seed,
            "steps": checkpoint.progress["steps"],
            "traces": traces_of(config.task),
            "weights_hash": weights_hash(network.state_dict()),
            "packages": package_versions(),
        },
        evaluation={"task": config.task, "selection_cost": checkpoint.progress["best_cost"], **asdict(report)},
    )
    path = export(
        layers_of(network),
        answer_of(network),
        learned,
        task_of(config.task).selection[:2],
        directory,
        seed=config.seed,
        ranges=feature_ranges(network, config),
    )
    return path, report


def checkpoint_of(path: Path) -> Checkpoint:
    """Return the checkpoint that a directory is, or the best one of the run that it holds; BadInput otherwise."""
    if (path / FACTS_FILE).exists():
        return read_checkpoint(path)
    for checkpoints in (checkpoints_of(path), Checkpoints(path)):
        best = checkpoints.best()
        if best is not None:
            return best
    raise BadInput("checkpoint", str(path), "give the directory of a checkpoint, or that of a run")


def network_of(config: PPOConfig, weights: Mapping[str, Tensor]) -> PolicyValueNetwork:
    """Return a network with these weights."""
    learned = learned_of(config)
    network = PolicyValueNetwork(config.network, len(learned.features), len(learned.actions), config.hidden)
    network.load_state_dict(dict(weights))
    return network


def learned_of(config: PPOConfig) -> PolicyFacts:
    """Return the observation and actions of a configuration's policy, without a record of its training."""
    return PolicyFacts(
        observation=config.observation,
        action_set=config.action_set,
        masked=config.masked,
        network=config.network,
        world=task_of(config.task).world,
    )


def traces_of(task: str) -> dict[str, Any]:
    """Return which traces a task trains on: names and digests of few, number and common digest of many."""
    traces = [trace for stage in task_of(task).stages for trace in stage.traces]
    together = hashlib.sha256(" ".join(trace.digest for trace in traces).encode()).hexdigest()
    named = {trace.name: trace.digest for trace in traces} if len(traces) <= _MOST_TRACES_NAMED else {}
    return {"count": len(traces), "digest": together, **({"digests": named} if named else {})}


# A campaign.


Curve = Sequence[tuple[int, float]]

_SEED_COLOUR, _MEAN_COLOUR = "#7fb8d1", "#0f3d57"
_LINE = 0.05
"""Height of a line of text as a share of the picture's."""
_HIGHEST = 2.0
"""The picture ends at this multiple of the highest baseline (or the best cost): early costs would hide the rest."""


def curve_of(path: Path, figure: str) -> list[tuple[int, float]]:
    """Return (steps, value) of a figure in a run's curve file; BadInput when it never measured it."""
    found = column(read_curve(path), figure)
    if not found:
        raise BadInput("curve", str(path), f"it has no {figure}: name a run that was evaluated")
    return found


def best_so_far(curve: Curve) -> list[tuple[int, float]]:
    """Return the lowest value up to each point."""
    lowest = np.minimum.accumulate([value for _, value in curve])
    return [(steps, float(value)) for (steps, _), value in zip(curve, lowest, strict=True)]


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """Return the mean over curves at each of their steps from where all have begun, each held until its next point."""
    begun = max(curve[0][0] for curve in curves)
    steps = sorted({at for curve in curves for at, _ in curve if at >= begun})
    rows = []
    for curve in curves:
        places = np.searchsorted([at for at, _ in curve], steps, side="right") - 1
        rows.append([curve[place][1] for place in places])
    return list(zip(steps, np.mean(rows, axis=0).tolist(), strict=True))


def summary_of(costs: Mapping[str, float], goals: Mapping[str, float], alone: Interval | None = None) -> dict[str, Any]:
    """Return the costs per run with their mean, its 95 % bootstrap interval, and the goals passed by mean and interval.

    costs: dollars an episode by name of the run. goals: those of the baselines on the same episodes. alone: interval
    over a single run's episodes, which is more than one over a single run.
    """
    over_episodes = alone is not None and len(costs) == 1
    interval = alone if alone is not None and over_episodes else mean_interval(list(costs.values()))
    return {
        "costs": dict(costs),
        "interval_over": "episodes" if over_episodes else "seeds",
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "goals": {
            name: {
                "cost": goal,
                "relative": interval.mean / goal - 1.0,
                "passed": interval.mean < goal,
                "surely": interval.high < goal,
            }
            for name, goal in goals.items()
        },
    }


def spread(values: Mapping[str, float], gap: float) -> dict[str, float]:
    """Return the values from low to high, each moved up to at least `gap` above the one before."""
    places: dict[str, float] = {}
    lowest = -np.inf
    for name, value in sorted(values.items(), key=lambda item: item[1]):
        lowest = max(value, lowest)
        places[name] = lowest
        lowest += gap
    return places


def draw_curves(
    curves: Mapping[str, Curve], goals: Mapping[str, float], path: Path, *, title: str, unit: str = "cost, $ an episode"
) -> None:
    """Draw each run's cost and the mean of their best so far as SVG, a line per baseline; same data, same bytes.

    curves: (steps, held-out figure) by name of the run. goals: baselines in the same unit.
    """
    if not curves:
        raise BadInput("curves", 0, "give at least one run")
    path.write_bytes(picture(lambda: _figure(curves, goals, title, unit), "svg"))


def _figure(curves: Mapping[str, Curve], goals: Mapping[str, float], title: str, unit: str) -> Figure:
    from matplotlib.figure import Figure

    best = [best_so_far(curve) for curve in curves.values()]
    mean = mean_curve(best)
    lowest = min([value for _, value in mean] + list(goals.values()))
    highest = _HIGHEST * max(goals.values(), default=mean[-1][1])
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    for curve in curves.values():
        axes.plot(*_columns(curve), color=_SEED_COLOUR, linewidth=0.9)
    axes.plot(*_columns(mean), color=_MEAN_COLOUR, linewidth=2.0)
    for goal in goals.values():
        axes.axhline(goal, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xlim(left=0.0)
    top = max(value for curve in curves.values() for _, value in curve)
    bottom, top = 0.9 * lowest, min(highest, 1.05 * max(top, *goals.values(), 0.0))
    axes.set_ylim(bottom, top)
    beside: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    for name, place in spread(goals, (top - bottom) * _LINE).items():
        axes.annotate(f"{name} {goals[name]:.2f}", (1.0, place), xytext=(4, -3), color=SOFT, **beside)
    runs = f"{len(curves)} seeds (light) and the mean of their best so far" if len(curves) > 1 else "one run"
    panel(axes, f"{title}: {runs}", x="environment steps, millions", y=f"held-out {unit}")
    return figure


def _columns(curve: Curve) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    points = np.array(curve, dtype=np.float64)
    return points[:, 0] / 1e6, points[:, 1]


@dataclass(frozen=True, slots=True)
class Variant:
    """One configuration of a campaign: its name (empty without a grid) and the directory of its runs."""

    name: str
    config: PPOConfig
    directory: Path


@dataclass(frozen=True, slots=True)
class Campaign:
    """Every variant with every seed."""

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    directory: Path

    def run_directory(self, variant: Variant, seed: int) -> Path:
        """Return the directory of a run."""
        return variant.directory / f"seed-{seed}"


def campaign_of(config: PPOConfig, seeds: Sequence[int], sweeps: Sequence[str], directory: Path) -> Campaign:
    """Return the campaign of a configuration, seeds and `field=value,value` sweeps; BadInput for a wrong field."""
    variants = []
    for changes in grid_of(sweeps):
        name = ",".join(f"{field}={value}" for field, value in changes.items())
        # A value may be a path or a policy's text; the directory's name has the signs that any file system takes.
        folder = "".join(sign if sign.isalnum() or sign in "=.,-_+" else "_" for sign in name)
        varied = replace(config, **changes_of("--sweep", PPOConfig, changes))
        variants.append(Variant(name, varied, directory / folder if name else directory))
    if "seed" in {field for changes in grid_of(sweeps) for field in changes}:
        raise BadInput("--sweep", "seed", "give seeds by --seeds, such as --seeds 0-4")
    return Campaign(tuple(variants), tuple(seeds), directory)


def jobs_of(campaign: Campaign, goals: Mapping[str, Mapping[str, float]], episodes: int) -> list[Job]:
    """Return a job per run, seeds of one variant together. goals: cost by baseline, per training task."""
    jobs = []
    for variant in campaign.variants:
        task = variant.config.task
        own = dict(goals.get(task, {}))
        for seed in campaign.seeds:
            name, config = f"{variant.name} seed {seed}".strip(), replace(variant.config, seed=seed)
            place = campaign.run_directory(variant, seed).resolve()
            jobs.append(Job(name, Run(name, config, place, own, marks_of(task, own), episodes).data))
    return jobs


def conclude(campaign: Campaign, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write `summary.json` and each variant's `curves.svg`, and return the summary.

    results: of the runs, in the order of the jobs. The best run is the cheapest on the held-out episodes by which
    checkpoints are chosen, not on the reported ones.
    """
    left = [RunResult.of(result) for result in results]
    variants = []
    for variant in campaign.variants:
        runs, left = left[: len(campaign.seeds)], left[len(campaign.seeds) :]
        places = [campaign.run_directory(variant, seed) for seed in campaign.seeds]
        names = [f"seed {seed}" for seed in campaign.seeds]
        goals, task, first = runs[0].goals, variant.config.task, runs[0].report
        curves = {name: curve_of(place / CURVE_FILE, HELD_OUT) for name, place in zip(names, places, strict=True)}
        drawing = variant.directory / CURVES_FILE
        draw_curves(curves, marks_of(task, goals), drawing, title=task, unit=held_out_unit(task))
        costs = {name: run.report.cost for name, run in zip(names, runs, strict=True)}
        chosen = min(range(len(runs)), key=lambda at: runs[at].selection_cost)
        variants.append(
            {
                "variant": variant.name,
                "task": task,
                **summary_of(costs, goals, Interval(first.cost, first.low, first.high, first.episodes)),
                "cpu_s": sum(run.cpu_s for run in runs),
                "best": {
                    "seed": campaign.seeds[chosen],
                    "selection_cost": runs[chosen].selection_cost,
                    "cost": runs[chosen].report.cost,
                    "model": str((places[chosen] / runs[chosen].model).relative_to(campaign.directory)),
                },
                "curves": str(drawing.relative_to(campaign.directory)),
            }
        )
    summary = {"seeds": list(campaign.seeds), "variants": variants}
    write_json(campaign.directory / SUMMARY_FILE, summary)
    return summary
