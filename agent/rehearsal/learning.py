"""The rehearsal of learning: ten days of a fleet whose load changes, and what `trimtab learn` makes of its ledger.

The days are lived by the agent's own loop in virtual time, and recorded in a real ledger. All that learns and judges is
`trimtab learn` and `trimtab promote`, in processes of their own, as a timer and a person would start them.

    days 1 to 3   short jobs, a batch every hour; the shipped scorer decides
    days 4, 5     jobs three times as long, two batches a day
    day 6         the round of day five runs on a copy of the ledger, while the fleet goes on; its gate refuses what it
                  learnt: over this fleet's days and the loads of others together it is not surely cheaper
    day 7         a person for whom this fleet alone counts hands it to the gate over the recorded days, and it is on
                  probation: a shadow of the shipped scorer
    days 8, 9     promoted, for it kept its promise
    day 10        the watch compares what was lived with what was predicted; the world file that it was given lies about
                  boots, which the next round finds out
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.models.directory import AUTOSCALING, ModelsDirectory, Subject
from agent.models.shipped import shipped_models
from agent.rehearsal.virtual_time import FLEET, START, Rehearsal, quiet_logs, rail_set
from domain.errors import TrimtabError
from domain.units import DAY_S, HOUR_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.reference import preset
from simulator.autoscaling.reference.world_file import World, write_world

DAYS = 10
CHANGE_DAY = 4
"""The first day of the new load."""
SHORT_S, LONG_S, SIGMA = 200.0, 600.0, 0.4
"""Mean seconds of a job before and after the change, and how much lengths vary (of a lognormal)."""
APART_S = 240.0
"""Mean seconds between two single jobs."""
OLD_BATCHES = tuple((hour + 1 / 6, 15) for hour in range(24))
NEW_BATCHES = ((9.0, 120), (17.0, 120))
"""Batches of a day: hour, and jobs."""
BATCH_S = 120.0
SAMPLES_S = 30.0
"""How often VMs and queue report."""
PROGRAM = "from agent.commands.main import app; app()"
SUBJECT = Subject(AUTOSCALING, FLEET)
LIE = 1 / 3
"""How long boots are said to take, in times of what they take."""
RECIPE = ("rounds=180+180", "rate=3e-4")
"""Of the scorer: steps small enough to keep what it knew of other loads."""

Say = Callable[[str], None]
Floats = NDArray[np.float64]


class LearningFailed(TrimtabError):
    """A step of the rehearsal ended otherwise than it must; the message has the output of the command."""


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the fleet: dollars of rent and of waiting jobs, jobs done, and what decided at its end."""

    number: int
    load: str
    rent: float
    waiting: float
    jobs: int
    policy: str

    @property
    def cost(self) -> float:
        """Dollars."""
        return self.rent + self.waiting


@dataclass(frozen=True, slots=True)
class Step:
    """A command that was run: its words, exit status, what it printed, and seconds."""

    name: str
    status: int
    output: str
    wall_s: float


@dataclass(slots=True)
class Told:
    """What came of the rehearsal; events: the history of the fleet's champions. saving: of days 8 and 9 over 4 to 7."""

    days: list[Day] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    wall_s: float = 0.0

    def cost(self, *numbers: int) -> float:
        """Return dollars of a day, the mean of these."""
        return float(np.mean([day.cost for day in self.days if day.number in numbers]))

    @property
    def saving(self) -> float:
        """Share of the cost of a day with the new load that the learnt scorer saves."""
        return 1.0 - self.cost(8, 9) / self.cost(4, 5, 6, 7)


def load_of(days: int, seed: int) -> Trace:
    """Return the jobs of so many days."""
    rng = np.random.default_rng(seed)
    arrivals: list[Floats] = []
    lengths: list[Floats] = []
    for number in range(1, days + 1):
        new = number >= CHANGE_DAY
        begin_s, mean_s = (number - 1) * DAY_S, LONG_S if new else SHORT_S
        single = rng.poisson(DAY_S / APART_S)
        arrivals.append(begin_s + np.sort(rng.uniform(0.0, DAY_S, single)))
        lengths.append(mean_s * rng.lognormal(-0.5 * SIGMA**2, SIGMA, single))
        for hour, jobs in NEW_BATCHES if new else OLD_BATCHES:
            arrivals.append(begin_s + hour * HOUR_S + rng.uniform(0.0, BATCH_S, jobs))
            lengths.append(mean_s * rng.lognormal(-0.5 * SIGMA**2, SIGMA, jobs))
    all_s = np.concatenate(arrivals)
    order = np.argsort(all_s)
    return make_trace("learning", all_s[order], np.concatenate(lengths)[order])


class LearningRehearsal:
    """The rehearsal in a folder: `ledger.db`, `models/`, and the folders of the rounds."""

    def __init__(self, folder: Path, say: Say, *, seed: int = 0, cpu_minutes: float = 5.0) -> None:
        self.folder, self._say, self._cpu_minutes = folder, say, cpu_minutes
        self.told = Told()
        self.ledger, self.models = folder / "ledger.db", ModelsDirectory(folder / "models")
        self._shelf = ModelShelf(self.models.path)
        self._shipped = shipped_models()[0].path
        world = preset("live-like")
        write_world(World(world.boots_scaled(LIE), "lie"), folder / "lie.toml")
        rails = replace(rail_set("default"), sample_interval_s=SAMPLES_S)
        trace = load_of(DAYS, seed)
        self._fleet = Rehearsal(
            "learned", trace, world, rails, self._shelf, self.ledger, seed=seed, hours=DAYS * DAY_S / HOUR_S
        )
        # As the agent does: the champion is looked for in every minute.
        (managed,) = self._fleet.ports.fleets
        self._fleet.ports.fleets = (replace(managed, policy="learned"),)

    def run(self) -> Told:
        """Live the ten days and learn; LearningFailed when a step ended otherwise than it must."""
        begun = time.monotonic()
        with quiet_logs():
            for number in range(1, 6):
                self._live(number)
            round_ = self._begin("round", self._copied(), 6.0, *self.round_options())
            self._live(6)
            self._ended(round_, 1, "the round of day five")
            self._ended(self._hand_to_the_gate(6.0), 0, "what it learnt is handed to the gate over the recorded days")
            self._fleet.ports.probationer = self._shelf.probationer
            self._live(7)
            self._ended(self._begin("probation", self.ledger, 7.0), 0, "the probation is over")
            self._live(8)
            self._live(9)
            lie = str(self.folder / "lie.toml")
            self._ended(self._begin("watch", self.ledger, 9.0, "--world", lie), 3, "the watch, in a world that lies")
            self._live(10)
        self._fleet.close()
        self.told.events = [(line["event"], line.get("reason", "")) for line in self.models.history(SUBJECT)]
        self.told.wall_s = time.monotonic() - begun
        return self.told

    def round_options(self) -> tuple[str, ...]:
        """Return how the round is done: its budget and its recipe."""
        recipe = [word for one in RECIPE for word in ("--set", one)]
        return ("--cpu-minutes", f"{self._cpu_minutes:g}", *recipe)

    def _live(self, number: int) -> None:
        simulation = self._fleet.cloud.simulation
        before = simulation.measures()
        policy = ""
        for report in self._fleet.minutes(round(number * DAY_S / MINUTE_S)):
            for decision in report.decisions:
                policy = decision.proposal.policy
        after = simulation.measures()
        load = "long jobs, two batches" if number >= CHANGE_DAY else "short jobs, a batch an hour"
        rent, waiting = after.rent - before.rent, after.penalty - before.penalty
        day = Day(number, load, rent, waiting, after.jobs_finished - before.jobs_finished, policy)
        self.told.days.append(day)
        who = "the shipped scorer" if self._shipped.stem in policy else policy.removeprefix("learned:")[:12]
        self._say(f"day {number}: {load}; {who} decides; ${day.cost:.2f} (rent ${rent:.2f}, waiting ${waiting:.2f})")

    def _copied(self) -> Path:
        """Return a copy of the ledger as it is now: what reads it meanwhile must not depend on how fast it is."""
        path = self.folder / f"ledger-day-{len(self.told.days)}.db"
        with sqlite3.connect(self.ledger) as here, sqlite3.connect(path) as there:
            here.backup(there)
        here.close()
        there.close()
        return path

    def _begin(self, name: str, ledger: Path, day: float, *more: str) -> _Started:
        """Start `trimtab learn` at the end of a day."""
        words = ["learn", "autoscaling", FLEET, "--ledger", str(ledger), "--at", f"{START + day * DAY_S:.0f}"]
        words += ["--models-dir", str(self.models.path), "--out", str(self.folder / "round"), "--days", "2", *more]
        return self._started(name, words)

    def _hand_to_the_gate(self, day: float) -> _Started:
        (model,) = (self.folder / "round" / "scorer").glob("*.onnx")
        words = ["promote", "autoscaling", FLEET, str(model), "--models-dir", str(self.models.path), "--traces", ""]
        at = f"{START + day * DAY_S:.0f}"
        return self._started("gate", [*words, "--recent", str(self._copied()), "--probation-hours", "24", "--at", at])

    def _started(self, name: str, words: Sequence[str]) -> _Started:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TRIMTAB_")}
        log = (self.folder / f"{name}.log").open("w+", encoding="utf-8")
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=log, stderr=log, env=environ)
        self._say(f"$ trimtab {' '.join(word for word in words[:3])} ... ({name})")
        return _Started(name, process, Path(log.name), time.monotonic())

    def _ended(self, started: _Started, status: int, what: str) -> None:
        """Wait for a command, tell its last words, and hold it to its exit status."""
        found = started.process.wait()
        output = started.log.read_text("utf-8")
        self.told.steps.append(Step(started.name, found, output, time.monotonic() - started.begun_s))
        if found != status:
            raise LearningFailed(f"{started.name} ended with exit status {found}, not {status}:\n{output}")
        self._say(f"{what} (exit status {found}):")
        for line in output.splitlines():
            if line and not line.endswith("..."):
                self._say(f"  {line}")


@dataclass(frozen=True, slots=True)
class _Started:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    begun_s: float
