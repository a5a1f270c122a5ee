"""The rehearsal of learning: ten days of a fleet whose load changes, and what `trimtab learn` makes of its ledger.

The days are lived by the agent's own loop in virtual time, and recorded in a real ledger. All that learns and judges is
`trimtab learn` and `trimtab promote`, in processes of their own, as a timer and a person would start them. Each is held
to its exit status; what it decides is its own.

    days 1 to 3   short jobs, a batch every hour; the shipped scorer decides
    days 4, 5     jobs three times as long, two batches a day
    day 6         the round of day five runs on a copy of the ledger, while the fleet goes on; its gate lets a scorer
                  pass
    day 7         which is on probation: a shadow of the shipped one
    day 8         promoted, for it kept its promise. Somebody trains a second scorer on the same days, in a world file
                  that says of the largest type what its data sheet says: four times as fast. The gate refuses it in the
                  world as it is
    days 9, 10    and lets it pass in the world that lies: it decides, until the watch has found that the days cost more
                  than that world predicted, and takes the promotion back

Why the check of the simulator lets that world pass: the largest type is dearer by the core, and what decided until
then hardly ever ordered it. No recorded day says how fast it is.
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
from agent.models.directory import ON_PROBATION, PROMOTED, ROLLED_BACK, ModelsDirectory, moment_text
from agent.models.shipped import shipped_models
from agent.rehearsal.virtual_time import FLEET, START, Rehearsal, quiet_logs, rail_set
from domain.errors import TrimtabError
from domain.subject import AUTOSCALING, Subject
from domain.units import DAY_S, HOUR_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import World, preset, write_world

DAYS = 10
CHANGE_DAY = 4
"""The first day of the new load."""
SHORT_S, LONG_S, SIGMA = 200.0, 600.0, 0.1
"""Mean seconds of a job before and after the change, and how much lengths vary (of a lognormal). A replay knows their
mean and quantiles, and not which job was the long one: where they vary much, VMs stay longer than in a replay."""
APART_S = 720.0
"""Mean seconds between two single jobs."""
OLD_BATCHES = tuple((hour + 1 / 6, 15) for hour in range(24))
NEW_BATCHES = ((9.0, 60), (17.0, 60))
"""Batches of a day: hour, and jobs."""
BATCH_S = 20.0
"""A batch comes within a minute: one decision sees it whole, in a replay too. On two batches a day it hangs."""
SAMPLES_S = 30.0
"""How often VMs and queue report."""
LIMITS = (15, 60, 20)
"""The most VMs of each type: without the largest one there are cores enough for a batch."""
STEP, REST_OUT_S, REST_IN_S = 60, 0.0, 60.0
"""VMs of a group that one decision may add or remove, and seconds between two changes. A batch is one order: where a
rest splits it, the cost of a day hangs on whether a single job came in the minutes before."""
HORIZON_S = 480.0
"""The fleet's setting of the queue rule, beside which scorers decide."""
DEARER = 1.25
"""Price of a core of the largest type, in times of the others'."""
FASTER = 4.0
"""How fast its cores are, in times of the others', by the world file that lies. In truth all are alike."""
PROBATION_HOURS = 24.0
PROGRAM = "from agent.commands.main import app; app()"
SUBJECT = Subject(AUTOSCALING, FLEET)
RECIPE = ("rounds=100+100", "rate=3e-4")
"""Of the round: steps small enough to keep what the shipped scorer knew of other loads."""
TRAINING = ("rounds=60+60+60",)
"""Of the second scorer, from nothing."""

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
    """A command that was run: its name, after which day, what came of it, exit status, what it printed, and seconds."""

    name: str
    day: int
    what: str
    status: int
    output: str
    wall_s: float


@dataclass(slots=True)
class Results:
    """What came of the rehearsal; events: the history of the fleet's champions, with the reasons."""

    days: list[Day] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    wall_s: float = 0.0

    def cost(self, *numbers: int) -> float:
        """Return dollars of a day, the mean of these."""
        return float(np.mean([day.cost for day in self.days if day.number in numbers]))

    @property
    def saving(self) -> float:
        """Share of the cost of a day with the new load (4 to 7) that the learnt scorer saves on day 8."""
        return 1.0 - self.cost(8) / self.cost(4, 5, 6, 7)


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


def fleet_world() -> SimulationConfig:
    """Return the world that the fleet lives in."""
    world = preset("live-like")
    small, medium, large = world.types
    large = replace(large, price_per_hour=DEARER * large.price_per_hour)
    return replace(world, types=(small, medium, large), limits=LIMITS, initial=world.minimum, cooldown_s=0.0)


def _fields(pairs: Sequence[str]) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def lying_world() -> SimulationConfig:
    """Return the world of the data sheet."""
    return replace(fleet_world(), speed=(1.0, 1.0, FASTER))


class LearningRehearsal:
    """The rehearsal in a folder: `ledger.db`, `models/`, the folders of both rounds, and `lie.toml`."""

    def __init__(self, folder: Path, say: Say, *, seed: int = 1, cpu_minutes: float = 5.0) -> None:
        self.folder, self._say, self._cpu_minutes = folder, say, cpu_minutes
        self.results = Results()
        self.ledger, self.models = folder / "ledger.db", ModelsDirectory(folder / "models")
        self._shelf = ModelShelf(self.models.path)
        self._shipped = shipped_models()[0].path
        self._lie = ("--world", str(folder / "lie.toml"))
        write_world(World(lying_world(), "lie"), folder / "lie.toml")
        rails = rail_set("default")
        limits = replace(rails.limits, max_step_out=STEP, max_step_in=STEP)
        limits = replace(limits, cooldown_out_s=REST_OUT_S, cooldown_in_s=REST_IN_S)
        rails = replace(rails, limits=limits, sample_interval_s=SAMPLES_S)
        self._fleet = Rehearsal(
            "learned",
            load_of(DAYS, seed),
            fleet_world(),
            rails,
            self._shelf,
            self.ledger,
            seed=seed,
            hours=DAYS * DAY_S / HOUR_S,
            horizon_s=HORIZON_S,
        )
        # As the agent does: the champion is looked for in every minute.
        (managed,) = self._fleet.loop.fleets
        self._fleet.loop.fleets = (replace(managed, policy="learned"),)

    def run(self) -> Results:
        """Live the ten days and learn; LearningFailed when a step ended otherwise than it must."""
        begun = time.monotonic()
        with quiet_logs():
            for number in range(1, 6):
                self._live(number)
            record = self._copied()
            honest = self._learn("round", record, 6.0, "--probation-hours", f"{PROBATION_HOURS:g}")
            checked = self._learn("check", record, 6.0, "--check", *self._lie)
            self._live(6)
            self._ended(checked, 0, "the check of the simulator lets the world that lies pass")
            jobs = self.folder / "jobs.csv.gz"
            since = moment_text(START + CHANGE_DAY * DAY_S - DAY_S)
            exported = ("trace", "from-ledger", str(record), "--fleet", FLEET, "--since", since, "--out", str(jobs))
            self._ended(self._started("trace", exported), 0, "the jobs of days four and five are written")
            elsewhere = self._train("training", jobs)
            self._ended(honest, 0, "the challenger of day five is on probation", ON_PROBATION)
            self._fleet.loop.probationer = self._shelf.probationer
            self._live(7)
            self._ended(self._learn("probation", self.ledger, 7.0), 0, "it kept its promise and is promoted", PROMOTED)
            self._ended(elsewhere, 0, "a second scorer is trained elsewhere, in the world that lies")
            refused = self._hand_to_the_gate("gate", 7.0)
            self._live(8)
            self._ended(refused, 1, "in the world as it is the gate refuses the second one")
            # Nothing else can go on meanwhile: what decides on day nine hangs on it.
            deceived = self._hand_to_the_gate("gate, deceived", 8.0, "--workers", "2", *self._lie)
            self._ended(deceived, 0, "in the lying one it passes", PROMOTED)
            self._live(9)
            self._live(10)
            self._ended(self._learn("watch", self.ledger, 10.0, *self._lie), 6, "the watch takes it back", ROLLED_BACK)
        self._fleet.close()
        self.results.events = [(line["event"], line.get("reason", "")) for line in self.models.history(SUBJECT)]
        self.results.wall_s = time.monotonic() - begun
        return self.results

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
        self.results.days.append(day)
        who = "the shipped scorer" if self._shipped.stem in policy else policy.removeprefix("learned:")[:12]
        self._say(f"day {number}: {load}; {who} decides; ${day.cost:.2f} (rent ${rent:.2f}, waiting ${waiting:.2f})")

    def _copied(self) -> Path:
        """Return a copy of the ledger as it is now: what reads it meanwhile must not depend on how fast it is."""
        path = self.folder / f"ledger-day-{len(self.results.days)}.db"
        with sqlite3.connect(self.ledger) as here, sqlite3.connect(path) as there:
            here.backup(there)
        here.close()
        there.close()
        return path

    def _learn(self, name: str, ledger: Path, day: float, *more: str) -> _Started:
        """Start `trimtab learn` as of the end of a day."""
        words = ["learn", "autoscaling", FLEET, "--ledger", str(ledger), "--at", f"{START + day * DAY_S:.0f}"]
        words += ["--models-dir", str(self.models.path), "--out", str(self.folder / "round"), "--days", "2"]
        budget = ["--cpu-minutes", f"{self._cpu_minutes:g}", *_fields(RECIPE)]
        return self._started(name, [*words, *budget, *more])

    def _train(self, name: str, jobs: Path) -> _Started:
        words = ["train", "autoscaling", "--form", "scorer", *self._lie, "--workload", str(jobs)]
        return self._started(name, [*words, *_fields(TRAINING), "--out", str(self.folder / "elsewhere")])

    def _hand_to_the_gate(self, name: str, day: float, *more: str) -> _Started:
        (model,) = (self.folder / "elsewhere" / "seed-0").glob("*.onnx")
        words = ["promote", "autoscaling", FLEET, str(model), "--models-dir", str(self.models.path), "--traces", ""]
        at = f"{START + day * DAY_S:.0f}"
        return self._started(name, [*words, "--recent", str(self._copied()), "--at", at, *more])

    def _started(self, name: str, words: Sequence[str]) -> _Started:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TRIMTAB_")}
        log = (self.folder / f"{name}.log").open("w+", encoding="utf-8")
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=log, stderr=log, env=environ)
        self._say(f"$ trimtab {' '.join(word for word in words[:3])} ... ({name})")
        return _Started(name, len(self.results.days), process, Path(log.name), time.monotonic())

    def _ended(self, started: _Started, status: int, what: str, event: str = "") -> None:
        """Wait for a command, tell its last words, and hold it to its exit status.

        event: what the history of the fleet's champions must end with then; "" where nothing is to change.
        """
        found = started.process.wait()
        output = started.log.read_text("utf-8")
        wall_s = time.monotonic() - started.begun_s
        self.results.steps.append(Step(started.name, started.day, what, found, output, wall_s))
        if found != status:
            raise LearningFailed(f"{started.name} ended with exit status {found}, not {status}:\n{output}")
        newest = [line["event"] for line in self.models.history(SUBJECT)][-1:]
        if event and newest != [event]:
            raise LearningFailed(f"after {started.name} no model is {event}:\n{output}")
        self._say(f"{what} (exit status {found}):")
        for line in output.splitlines():
            if line and not line.endswith("..."):
                self._say(f"  {line}")


@dataclass(frozen=True, slots=True)
class _Started:
    name: str
    day: int
    process: subprocess.Popen[bytes]
    log: Path
    begun_s: float
