"""A rehearsal: the real loop against a simulated cloud in virtual time, and what it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actuators.drift import DriftRule
from agent.autoscaling.policies.fallback import Models, Proposer, evaluate_directly
from agent.autoscaling.policies.ppo_lstm import names_model
from agent.autoscaling.policies.registry import policy_from_name
from agent.autoscaling.ports import ManagedFleet, Ports
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.tick import run_tick
from agent.ledger import Ledger
from agent.rehearsal.counterfactual import never_ending
from agent.rehearsal.virtual_cloud import VirtualCloud
from agent.rehearsal.virtual_rails import RailSet
from agent.service.assembly import NEEDED
from agent.settings.fleet import PolicyName
from domain.clock import VirtualClock
from domain.decisions import Mode, Reason, Verdict
from domain.errors import BadInput, LedgerUnavailable
from domain.fleet import Fleet, Group
from domain.workload import Trace
from simulator.autoscaling.reference import Measures, SimulationConfig

FLEET = "web"
START = 1_795_209_000.0 // 60.0 * 60.0
"""Virtual start: a whole minute in November 2026."""

Told = Callable[[int, int], None]
"""Called after each minute with the minutes lived and the jobs finished."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a rehearsal came to.

    measures: as the simulator counts them (autoscaler specification §11). decisions, changed, held: how many were made,
    changed the fleet, and were changed by a rail. stood_in: those in which another policy had to stand in. events: how
    often each kind of event happened.
    """

    policy: str
    rails: str
    workload: str
    digest: str
    seed: int
    measures: Measures
    decisions: int
    changed: int
    held: int
    stood_in: int
    events: dict[str, int]

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data, the measures beside the rest."""
        about = {name: value for name, value in asdict(self).items() if name != "measures"}
        return about | asdict(self.measures)


def fleet_of(config: SimulationConfig, name: str = FLEET) -> Fleet:
    """Return the fleet that lives in this world: a group per VM type, keyed s, m, l where there are three."""
    kinds = len(config.types)
    keys = tuple("sml") if kinds == 3 else tuple(f"type{k}" for k in range(kinds))
    each = zip(keys, config.types, config.minimum, config.limits, strict=True)
    return Fleet(name, tuple(Group(key, f"{name}-{key}", kind, low, high) for key, kind, low, high in each))


def checked_policy(text: str, fleet: Fleet, models: Models) -> str:
    """Return the policy's full name, or raise BadInput: one that cannot decide for this fleet is not rehearsed."""
    if names_model(text):
        return models.policy(text, fleet).name
    policy = policy_from_name(text)
    sizes = getattr(policy, "sizes", None)
    if sizes is not None and len(sizes) != len(fleet.groups):
        raise BadInput("--policy", text, f"give {len(fleet.groups)} sizes, one per VM type")
    return policy.name


class Rehearsal:
    """One rehearsal: the loop's parts around a virtual cloud, its ledger in the file `ledger_path`."""

    def __init__(
        self,
        policy: str,
        trace: Trace,
        config: SimulationConfig,
        rails: RailSet,
        models: Models,
        ledger_path: Path,
        *,
        seed: int = 0,
        hours: float | None = None,
        idle_s: float = 120.0,
    ) -> None:
        """Set up; without `hours` it lasts until the last job has finished. Raises BadInput."""
        if ledger_path.exists():
            raise LedgerUnavailable(f"{ledger_path} is there already: a rehearsal begins with a ledger of its own")
        self._minutes = config.max_steps if hours is None else round(hours * 60.0)
        self._trace, self._rails, self._seed = trace, rails, seed
        lived = trace if hours is None else never_ending(trace, self._minutes * config.step_s)
        fleet = fleet_of(config)
        clock = self._clock = VirtualClock(START + rails.grace_s)
        store = SeriesStore(watched=[fleet])
        self.cloud = VirtualCloud(fleet, rails.world(config), lived, seed, store, clock, rails.sample_interval_s)
        self.policy = checked_policy(policy, fleet, models)
        kind = policy.partition(":")[0]
        needed = NEEDED.get(PolicyName(kind), ()) if kind in set(PolicyName) else ()
        self._first_decision = int(needed == ("cpu",) and not rails.measured_before)
        aggregation = AggregationSettings(
            limits=rails.limits,
            sample_interval_s=rails.sample_interval_s,
            grace_s=rails.grace_s,
            idle_s=idle_s + rails.idle_more_s,
            needed=needed,
            removes_newest=not rails.drains,
            episode_gap_s=rails.episode_gap_s,
        )
        self.ledger = Ledger.open(f"sqlite:///{ledger_path}")
        self.ports = Ports(
            fleets=(ManagedFleet(fleet, rails.limits, self.policy, None, aggregation, DriftRule.ADOPT),),
            ledger=self.ledger,
            actuator=self.cloud,
            aggregator=Aggregator(store),
            proposer=Proposer(evaluate_directly, models=models),
            wall=clock.now,
            monotonic=clock.monotonic,
            mode=Mode.ACT,
            epoch=self.ledger.take_epoch("rehearsal", clock.now()),
            protect_busy=False,
        )

    def run(self, rails: str, told: Told | None = None) -> Rehearsed:
        """Live all minutes and return what they came to; `rails` is the name under which it is told."""
        decisions = changed = held = stood_in = 0
        events: dict[str, int] = {}
        simulation = self.cloud.simulation
        while not simulation.finished and simulation.steps < self._minutes:
            if simulation.steps < self._first_decision:
                self.cloud.minute()
                continue
            report = run_tick(self._clock.now(), self.ports)
            if report.failure is not None:
                raise LedgerUnavailable(report.failure)
            for decision in report.decisions:
                decisions += 1
                changed += bool(decision.intents)
                held += any(effect.verdict is not Verdict.PASSED for effect in decision.effects)
                stood_in += bool(decision.policy_failures)
            for event in report.events:
                events[event.reason.value] = events.get(event.reason.value, 0) + 1
            self.cloud.minute()
            if told is not None:
                told(simulation.steps, simulation.measures().jobs_finished)
        return Rehearsed(
            self.policy,
            rails,
            self._trace.name,
            self._trace.digest,
            self._seed,
            simulation.measures(),
            decisions,
            changed,
            held,
            stood_in,
            {name: count for name, count in sorted(events.items()) if name != Reason.STARTED.value},
        )

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()
