"""One policy of deferral on several episodes: what it earns, and each step of it, as a table and as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domain.rules.deferral.forecast import Forecast
from domain.rules.deferral.jobs import Ints, Score, occupancy
from simulator.deferral.scenarios import Episode
from trainer.deferral.evaluation import Subject
from trainer.deferral.policies import Player, checked_schedule, policy_of
from trainer.kit.drawing import FLEET, INK, QUEUE, panel, picture
from trainer.kit.files import replace_file, write_json
from trainer.kit.jobs import HERE, Pool, Workers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_AT_ONCE, _DEFERRED, _OVER = FLEET[1], FLEET[3], QUEUE


@dataclass(frozen=True, slots=True, eq=False)
class Play:
    """A policy on the episodes of some seeds: schedules and scores in their order, all of them checked.

    fallbacks: steps in which the knapsack decided in the policy's place.
    """

    subject: str
    policy: str
    seeds: tuple[int, ...]
    episodes: tuple[Episode, ...]
    starts: tuple[Ints, ...]
    scores: tuple[Score, ...]
    fallbacks: int

    def as_data(self) -> dict[str, Any]:
        """Return the figures as JSON data: means, and the score of each seed."""
        totals = np.array([score.total for score in self.scores])
        means = {name: float(np.mean([getattr(score, name) for score in self.scores])) for name in Score._fields}
        return {
            "scenario": self.subject,
            "policy": self.policy,
            "episodes": len(self.seeds),
            "jobs": float(np.mean([one.jobs.size for one in self.episodes])),
            "offered": float(np.mean([one.jobs.revenue.sum() for one in self.episodes])),
            "capacity": float(np.mean([one.capacity.sum() for one in self.episodes])),
            **means,
            "delay_charge": float(np.mean([score.delay_charge for score in self.scores])),
            "standard_error": float(totals.std(ddof=1) / np.sqrt(totals.size)) if totals.size > 1 else None,
            "fallbacks": self.fallbacks,
            "by_seed": [{"seed": seed} | score._asdict() for seed, score in zip(self.seeds, self.scores, strict=True)],
        }


@dataclass(frozen=True, slots=True, eq=False)
class _Player:
    subject: Subject
    player: Player
    forecast: Forecast | None

    def play(self, seed: int) -> tuple[Episode, Ints, Score, int]:
        one = self.subject.episode(seed)
        return one, *checked_schedule(self.player, f"{self.subject.name}, seed {seed}", one, self.forecast)


def play(
    subject: Subject,
    text: str,
    seeds: Sequence[int],
    on_progress: Callable[[int, int], None] = lambda done, of: None,
    workers: Workers = HERE,
) -> Play:
    """Play a policy on the episodes of some seeds, and check every schedule.

    on_progress: called with the episodes done and their number. Raises BadInput, and ScheduleWrong for a schedule that
    breaks a rule.
    """
    player = policy_of(text)
    one = _Player(subject, player, subject.forecast() if player.needs_forecast else None)
    on_progress(0, len(seeds))
    played = []
    with Pool(one.play, workers, name=lambda seed: f"{subject.name}, seed {seed}") as pool:
        for result in pool.run(seeds):
            played.append(result)
            on_progress(len(played), len(seeds))
    episodes, starts, scores, fallbacks = zip(*played, strict=True)
    return Play(subject.name, text, tuple(seeds), episodes, starts, scores, sum(fallbacks))


def steps_of(played: Episode, start: Ints) -> dict[str, Ints]:
    """Return what happens in each step under a schedule [N], by column: [T] each, in cores unless it says jobs.

    hour: of the week. running: all work that runs; deferred: the part that started after its earliest step; violation:
    above the capacity; waiting: could have started and has not; started, expired: in this step.
    """
    jobs, steps = played.jobs, played.steps
    on = start >= 0
    running = occupancy(jobs, start, steps)
    ready = np.maximum(jobs.submitted, jobs.earliest)
    # As jobs that run while these wait: from the step in which they can start to the one in which they do, or cannot.
    wait = np.where(on, start, jobs.latest + 1) - ready
    waiting = jobs._replace(duration=wait)
    since = np.where((wait > 0) & (ready < steps), ready, -1)
    lost = jobs.latest[~on & (jobs.latest < steps)]
    return {
        "hour": played.hours,
        "capacity": played.capacity,
        "running": running,
        "deferred": occupancy(jobs, np.where(start > jobs.earliest, start, -1), steps),
        "violation": np.maximum(running - played.capacity, 0),
        "waiting": occupancy(waiting, since, steps),
        "waiting_jobs": occupancy(waiting._replace(cores=np.ones_like(wait)), since, steps),
        "started": np.bincount(start[on], weights=jobs.cores[on], minlength=steps).astype(np.int64),
        "started_jobs": np.bincount(start[on], minlength=steps),
        "expired_jobs": np.bincount(lost, minlength=steps),
    }


def write_steps(played: Play, path: Path) -> None:
    """Write every step of every episode: a CSV with a line each, or JSON with columns by seed."""
    tables = {
        seed: steps_of(one, start)
        for seed, one, start in zip(played.seeds, played.episodes, played.starts, strict=True)
    }
    if path.suffix.lower() == ".json":
        columns = {str(seed): {name: column.tolist() for name, column in one.items()} for seed, one in tables.items()}
        write_json(path, {"scenario": played.subject, "policy": played.policy, "seeds": columns})
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for place, (seed, table) in enumerate(tables.items()):
        if place == 0:
            writer.writerow(["seed", "step", *table])
        rows = zip(*(column.tolist() for column in table.values()), strict=True)
        writer.writerows([seed, step, *row] for step, row in enumerate(rows))
    replace_file(path, text.getvalue())


def draw(played: Play, path: Path) -> None:
    """Write a picture of the first episode; the same episode gives the same bytes."""
    kind = path.suffix.lower().removeprefix(".")
    replace_file(path, picture(lambda: _figure(played), kind, style={"axes.grid.axis": "y", "text.parse_math": False}))


def _figure(played: Play) -> Figure:
    from matplotlib.figure import Figure

    one, score = played.episodes[0], played.scores[0]
    table = steps_of(one, played.starts[0])
    edges = np.arange(one.steps + 1)
    figure = Figure(figsize=(9.5, 5.2), layout="constrained")
    load, queue = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1.0))
    at_once = table["running"] - table["deferred"]
    within = np.minimum(table["running"], table["capacity"])
    load.stairs(at_once, edges, fill=True, color=_AT_ONCE, label="started at their earliest step")
    load.stairs(table["running"], edges, baseline=at_once, fill=True, color=_DEFERRED, label="deferred")
    if table["violation"].any():
        load.stairs(table["running"], edges, baseline=within, fill=True, color=_OVER, label="above the capacity")
    load.stairs(table["capacity"], edges, color=INK, linewidth=1.2, label="capacity left by on-demand work")
    load.set_ylim(0, 1.25 * max(1, int(table["capacity"].max()), int(table["running"].max())))
    load.legend(loc="upper left", ncols=4, frameon=False)
    panel(load, "Cores of running jobs", y="running, cores")
    queue.stairs(table["waiting"], edges, fill=True, color=FLEET[2])
    panel(queue, "Cores of jobs that could have started and wait", x="time, days", y="waiting, cores")
    midnights = np.flatnonzero(one.hours % 24 == 0)
    queue.set_xticks(midnights, [_DAYS[one.hours[t] // 24] for t in midnights])
    queue.set_xlim(0, one.steps)
    figure.suptitle(
        f"{played.policy} on {played.subject}, seed {played.seeds[0]}: {score.total:,.0f} of "
        f"{int(one.jobs.revenue.sum()):,} core-steps offered",
        x=0.01,
        ha="left",
        fontsize=11,
        fontweight="bold",
    )
    return figure
