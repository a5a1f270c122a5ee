"""A fleet as a default install has it, on 36 hours of a recorded log: tuned by itself, and taken back.

The policy is the queue rule, and neither its horizon nor its idle time is set.

    hours 0 to 24    the rule of the settings decides. `trimtab learn --check` replays the record: the simulator
                     describes the fleet. SELF_TUNE=on: `trimtab self-tune` puts a cheaper setting in use
    hours 24 to 30   the agent has taken it up, and it decides; the watch lets it stay
    hours 30 to 36   a person forces a setting that keeps idle machines for hours. The watch leaves the choice of a
                     person alone; the person goes back, and the agent follows

A second fleet lives the same hours under the rule of the settings: the difference is the saving.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.autoscaling.fleets import managed_fleets
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.tuned_rules import TunedRules
from agent.models.directory import FORCED, PROMOTED, ROLLED_BACK, ModelsDirectory
from agent.models.queue_rule import rule_file
from agent.rehearsal.commands import Commands, LearningFailed, Say, Shown, Step, last_words
from agent.rehearsal.virtual_time import FLEET, START, Rehearsal, fleet_of, rail_set
from agent.settings import load_settings
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject
from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.swf import SwfOptions, read_swf

LOG = Path(__file__).parents[2] / "benchmarks" / "logs" / "LCG-2005-1-first48h.swf.gz"
TUNED_H, FORCED_H, END_H = 24, 30, 36
"""Hours at which the setting is tuned, another one is forced, and that is taken back."""
JOBS = SwfOptions(from_s=12.0 * HOUR_S, hours=float(END_H), run_scale=0.3, thin=0.045)
"""Shorter run times, fewer jobs: a fleet of a few machines works off the grid's jobs of hours."""
WASTEFUL = RuleSetting(15.0, 8 * HOUR_S)
"""The forced setting: many machines at once, which stay for eight idle hours."""
SUBJECT = Subject(QUEUE_RULE, FLEET)


@dataclass(frozen=True, slots=True)
class Part:
    """Hours under one setting of the rule: dollars, and those of the same hours under the rule of the settings."""

    begin_h: int
    end_h: int
    setting: str
    cost: float
    default_cost: float


@dataclass(slots=True)
class Results:
    """The parts, the commands, and the events that the agent raised about the rule."""

    steps: list[Step]
    parts: list[Part] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    wall_s: float = 0.0


def settings_of(config: SimulationConfig) -> dict[str, str]:
    """Return the least settings of a fleet: its groups. The rest is as a new install has it."""
    fleet = fleet_of(config)
    found: dict[str, str] = {}
    for group in fleet.groups:
        kind = group.vm_type
        values = {"NAME": group.name, "VM_TYPE": kind.name, "CORES": kind.cores, "MEMORY_GB": kind.memory_gb}
        values |= {"PRICE_PER_HOUR": kind.price_per_hour, "MIN": group.minimum, "MAX": group.maximum}
        found |= {f"TRIMTAB_FLEETS__{FLEET}__GROUPS__{group.key}__{name}": str(value) for name, value in values.items()}
    return found


class LearningRehearsal:
    """The hours in a folder: `ledger.db`, `models/`, and the output of the commands."""

    def __init__(self, folder: Path, say: Say, *, seed: int = 1, log: Path = LOG) -> None:
        self._folder, self._say, self._seed = folder, say, seed
        self._config = preset("live-like")
        self._settings = settings_of(self._config)
        self.models = ModelsDirectory(folder / "models")
        self._ledger = ("--ledger", str(folder / "ledger.db"))
        self._shelf = ModelShelf(self.models.path)
        self.commands = Commands(folder, say, self.models, SUBJECT, self._settings)
        self.results = Results(self.commands.steps)
        trace = read_swf(log, JOBS)[0]
        self._fleet = self._rehearsal(trace, folder / "ledger.db")
        self._fleets = (self._fleet, self._rehearsal(trace, folder / "untuned.db"))
        self._rules = TunedRules(self.models.path)
        self._fleet.loop.tuned = self._rules.take_up

    def _rehearsal(self, trace: Trace, ledger: Path) -> Rehearsal:
        (managed,) = managed_fleets(load_settings(self._settings), self._settings)
        found = Rehearsal(
            managed.policy,
            trace,
            self._config,
            rail_set("default"),
            self._shelf,
            ledger,
            seed=self._seed,
            hours=float(END_H),
        )
        found.loop.fleets = (replace(managed, fleet=found.loop.fleets[0].fleet),)
        return found

    def run(self) -> Results:
        """Live the hours; LearningFailed when a step did not end as it must."""
        begun = time.monotonic()
        self._say(f"a default install: POLICY=queue-rule, nothing else is set; {END_H} hours of a recorded log")
        self._live(TUNED_H)
        words = ["learn", "autoscaling", FLEET, "--check", *self._ledger, "--out", str(self._folder / "round")]
        self._do("check", words, "the check: the simulator describes the fleet")
        self.commands.environ = self._settings | {f"TRIMTAB_FLEETS__{FLEET}__SELF_TUNE": "on"}
        self._tune("self-tune", "a cheaper setting of the rule is found and put in use", PROMOTED, "promoted")
        self._live(FORCED_H)
        self._tune("self-tune, watch", "the watch: the setting stays", "", "continue")
        forced = rule_file(FLEET, WASTEFUL)
        file = self._folder / forced.name
        file.write_bytes(forced.content)
        words = ["promote", "queue-rule", FLEET, str(file), "--force", "no job shall wait"]
        self._do("force", words, "a person forces a setting that keeps idle machines for hours", FORCED)
        self._live(END_H)
        self._tune("self-tune, forced", "the watch leaves the choice of a person alone", FORCED, "")
        words = ["promote", "queue-rule", FLEET, "--rollback"]
        self._do("rollback", words, "the person goes back to the setting before", ROLLED_BACK)
        self._note()
        for one in self._fleets:
            one.close()
        self.results.wall_s = time.monotonic() - begun
        return self.results

    def _live(self, until_h: int) -> None:
        begin_h = self.results.parts[-1].end_h if self.results.parts else 0
        self._note()
        before = [one.cloud.simulation.measures().cost for one in self._fleets]
        for one in self._fleets:
            for _ in one.minutes(until_h * 60):
                pass
        cost, default_cost = (
            one.cloud.simulation.measures().cost - earlier for one, earlier in zip(self._fleets, before, strict=True)
        )
        part = Part(begin_h, until_h, self._setting(), cost, default_cost)
        self.results.parts.append(part)
        self._say(
            f"hours {begin_h} to {until_h}: the queue rule decides with {part.setting}; ${cost:.2f}, "
            f"with the settings' own ${default_cost:.2f}"
        )

    def _setting(self) -> str:
        (managed,) = self._fleet.loop.tuned(self._fleet.loop.fleets)
        own = "" if managed.tuned else ", the settings' own"
        return f"horizon {managed.horizon_s:g} s, idle time {managed.aggregation.idle_s:g} s{own}"

    @property
    def _now_s(self) -> float:
        return START + MINUTE_S * self._fleet.cloud.simulation.steps

    def _note(self) -> None:
        """Show the agent's events about the rule."""
        managed = self._fleet.loop.fleets
        self._rules.reload()
        for event in self._rules.events(self._now_s, managed):
            self.results.events.append(f"{event.reason}: {event.detail}")
            self._say(f"the agent: {self.results.events[-1]}")

    def _tune(self, name: str, what: str, event: str, outcome: str) -> None:
        output = self._do(name, ["self-tune", FLEET, *self._ledger], what, event, _why)
        found = _answer(output)["outcome"]
        if found != outcome:
            raise LearningFailed(f"{name} answers {found}, not {outcome}:\n{output}")

    def _do(self, name: str, given: list[str], what: str, event: str = "", words: Shown = last_words) -> str:
        call = [*given, "--models-dir", str(self.models.path), "--at", f"{self._now_s:.0f}"]
        started = self.commands.start(name, self.results.parts[-1].end_h, call)
        return self.commands.end(started, 0, what, event, words)


def _answer(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _why(output: str) -> list[str]:
    found = _answer(output)
    return [f"{found['did']}, {found['outcome']}: {found['why']}"]
