"""The rehearsal in virtual time: the real loop on the reference simulator, whose VMs and job queue report to it.

Nothing here waits: the clock moves as the simulator is stepped, so that days of a trace take seconds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from actuators.base import Act, ChangingCall, Permit
from agent.autoscaling.fleets import ManagedFleet
from agent.autoscaling.loop import Loop
from agent.autoscaling.policies.fallback import Models, Proposer, evaluate_directly
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import names_model
from agent.autoscaling.policies.registry import inputs_needed, policy_from_name, rule_of
from agent.autoscaling.report import MinuteReport
from agent.autoscaling.snapshot.aggregate import (
    EPISODE_GAP_S,
    AggregationSettings,
    Aggregator,
)
from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from agent.ledger import Ledger
from agent.models.shipped import shipped_models, with_file
from agent.rails.base import RailLimits
from agent.rails.schedule import WindowSetting
from agent.rehearsal.summary import never_ending
from agent.settings.fleet import MODEL_FILE
from agent.settings.plug_ins import POLICIES, installed
from domain.clock import VirtualClock
from domain.decisions import Direction, Event, Intent, Mode, Outcome, Reason, Status, Verdict
from domain.errors import BadInput, LedgerUnavailable
from domain.fleet import Fleet, Group
from domain.observed import DrainHook, GroupObserved, Instance, Lifecycle, Observed
from domain.rules.queue_rule import HORIZON_S, IDLE_S, JOB_CORE_S
from domain.samples import NEWEST_JOBS, QueueMetric, QueueSeries, VmMetric, VmSeries, job_quantiles
from domain.snapshot import Terms
from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace
from simulator.autoscaling.configuration import EXACT, PRICES, RemovalChoice, RemovalMode, SimulationConfig
from simulator.autoscaling.twin import Simulation, Watch
from simulator.autoscaling.twin_world import BOOTING, DRAINING, READY, Machine
from simulator.autoscaling.view import Measures
from simulator.autoscaling.world_file import JobSizes, World, world_named
from simulator.workloads.named import workload_of

FLEET = "web"
START = 1_795_209_000.0 // MINUTE_S * MINUTE_S
"""Virtual start: a whole minute in November 2026."""

UNLIMITED = 1_000_000
ZONE = "virtual-1a"
HOOK = DrainHook("drain", 300.0, 7200.0)
BEFORE_S = 60.0
"""The first VMs have reported for so long, idle, before the first decision."""

_LIFECYCLE = {BOOTING: Lifecycle.PENDING, READY: Lifecycle.IN_SERVICE, DRAINING: Lifecycle.DRAINING}


@dataclass(frozen=True, slots=True)
class RailSet:
    """The rails of a rehearsal, and the settings that depend on them.

    limits: of the rails. grace_s: seconds from a minute's end to its decision. sample_interval_s: how often VMs report.
    idle_more_s: added to the time after which a VM counts as idle for long. drains: whether removed VMs finish their
    jobs, the one with the least to lose first, instead of terminating at once, the newest first. measured_before:
    whether rules on CPU decide at once, on what the first VMs measured before; if not, once a minute has passed.
    episode_gap_s: a fleet that is idle at its minimum for so long begins a new episode, with an empty memory.
    """

    limits: RailLimits
    grace_s: float
    sample_interval_s: float
    idle_more_s: float
    drains: bool
    measured_before: bool
    episode_gap_s: float

    def world(self, config: SimulationConfig) -> SimulationConfig:
        """Return the simulated world under these rails, without a cool-down of its own: the rails have it."""
        changed = replace(config, cooldown_s=0.0)
        if self.drains:
            least = RemovalChoice.LEAST_WORK_LOST
            changed = replace(changed, removal_mode=RemovalMode.DRAIN, removal_choice=least)
        return changed


PAPER = RailSet(
    RailLimits(
        min_coverage=0.0,
        max_age_s=3600.0,
        hold_bins=UNLIMITED,
        sick_share=1.0,
        sick_count=UNLIMITED,
        max_step_out=UNLIMITED,
        max_step_in=UNLIMITED,
        cooldown_out_s=0.0,
        cooldown_in_s=0.0,
        in_periods=1,
        min_lifetime_s=0.0,
        max_reversals=UNLIMITED,
        capacity_memory_s=0.0,
        breaker_failures=UNLIMITED,
        count_booting=False,
    ),
    grace_s=0.0,
    sample_interval_s=60.0,
    idle_more_s=60.0,
    drains=False,
    measured_before=False,
    episode_gap_s=float(UNLIMITED),
)
"""Bounds, minimum and cool-down only, as in the published experiment. The decision falls at the end of a minute, from
one reading taken then, as when `trimtab simulate` plays the training presets: the two can be compared. A VM that is
idle in the only reading of a minute may have fallen idle anywhere in it, hence a minute more until it counts as idle
for long. A trace is one episode, however long its pauses."""

DEFAULT = RailSet(
    RailLimits(),
    grace_s=5.0,
    sample_interval_s=10.0,
    idle_more_s=0.0,
    drains=True,
    measured_before=True,
    episode_gap_s=EPISODE_GAP_S,
)
"""The agent's own rails, with readings every ten seconds and VMs that are drained."""

RAIL_SETS: Mapping[str, RailSet] = {"paper": PAPER, "default": DEFAULT}


def rail_set(name: str, cooldown_s: float | None = None) -> RailSet:
    """Return the rails of that name, with another cool-down per group and direction where one is given, or BadInput."""
    if name not in RAIL_SETS:
        raise BadInput("--rails", name, f"choose one of {', '.join(RAIL_SETS)}")
    chosen = RAIL_SETS[name]
    if cooldown_s is None:
        return chosen
    return replace(chosen, limits=replace(chosen.limits, cooldown_out_s=cooldown_s, cooldown_in_s=cooldown_s))


class VirtualCloud:
    """The simulated fleet as the loop's cloud (an `actuators.base.Actuator`) and as the sender of its measurements.

    clock: shows the time of the first decision, which is the simulator's second 0. sample_interval_s: how often VMs
    and queue report, counted from each decision. Intents become sizes: the simulator's rule chooses the VM that leaves,
    and a change takes effect at once, as a step of the simulator begins with its action. sizes_known: whether the queue
    reports the work of its jobs, else that of those that have finished.
    """

    def __init__(
        self,
        fleet: Fleet,
        config: SimulationConfig,
        trace: Trace,
        seed: int,
        store: SeriesStore,
        clock: VirtualClock,
        sample_interval_s: float,
        sizes_known: bool = True,
    ) -> None:
        self._sizes_known = sizes_known
        self.simulation = Simulation(config, trace, seed, Watch(sample_interval_s, self._report))
        self._fleet, self._store, self._clock = fleet, store, clock
        self._origin = clock.now()
        self._changes = [0] * len(fleet.groups)
        self._paths: dict[str, tuple[bytes, ...]] = {}
        self._queue_paths = {metric: QueueSeries(fleet.name, metric).path.encode() for metric in QueueMetric}
        self._quantiles_at, self._quantiles = 0, dict[QueueMetric, float]()
        steps = round(BEFORE_S / sample_interval_s)
        for number in range(steps):
            self._send(self._origin - (steps - 1 - number) * sample_interval_s)

    def minute(self) -> None:
        """Step the simulator once, with the changes applied since the last step."""
        self.simulation.step(np.array(self._changes, dtype=np.int64))
        self._changes = [0] * len(self._changes)

    def observe(self, fleets: Sequence[Fleet], now: float) -> Observed:
        """Return the groups of the simulator."""
        by_kind: dict[int, list[Machine]] = {}
        for machine in self.simulation.machines:
            by_kind.setdefault(machine.kind, []).append(machine)
        groups = {}
        for kind, group in enumerate(self._fleet.groups):
            machines = by_kind.get(kind, [])
            groups[group.name] = GroupObserved(
                name=group.name,
                desired=sum(machine.state != DRAINING for machine in machines),
                minimum=group.minimum,
                maximum=group.maximum,
                instances=tuple(self._instance(machine) for machine in machines),
                zones=(ZONE,),
                drain_hook=HOOK,
            )
        return Observed(now, groups)

    def apply(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Record the change of size; what exceeds the simulator's limits is not achieved."""
        kind = self._fleet.index(intent.group)
        asked = abs(intent.target - intent.before)
        if intent.direction is Direction.REPLACE:
            return Outcome(intent.intent_id, Status.SKIPPED, Reason.NOTHING_TO_DO, asked, 0, now)
        act = Act.LAUNCH if intent.direction is Direction.OUT else Act.REMOVE
        refusal = permit(ChangingCall(act, intent.fleet, intent.group, intent))
        if refusal is not None:
            return Outcome(intent.intent_id, Status.SKIPPED, refusal.reason, asked, 0, now, refusal.detail)
        mine = [machine for machine in self.simulation.machines if machine.kind == kind]
        config = self.simulation.config
        if intent.direction is Direction.OUT:
            achieved = min(asked, config.limits[kind] - len(mine))
            self._changes[kind] += achieved
        else:
            achieved = min(asked, sum(machine.state == READY for machine in mine) - config.minimum[kind])
            self._changes[kind] -= achieved
        done = achieved == asked
        status, reason = (Status.DONE, Reason.DONE) if done else (Status.PARTIAL, Reason.PARTIAL)
        return Outcome(intent.intent_id, status, reason, asked, achieved, now)

    def follow(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Close an intent that an earlier run left open, as superseded."""
        asked = abs(intent.target - intent.before)
        return Outcome(intent.intent_id, Status.SKIPPED, Reason.SUPERSEDED, asked, 0, now)

    def clock_stepped(self, step_s: float) -> None:
        """Do nothing: a virtual clock is never set."""

    def tend(
        self, fleet: Fleet, observed: Observed, busy_cores: Mapping[str, float | None], now: float, permit: Permit
    ) -> tuple[Event, ...]:
        """Do nothing: drains end by themselves."""
        return ()

    def _instance(self, machine: Machine) -> Instance:
        launched_at = self._origin + machine.requested_at
        return Instance(_vm(machine), ZONE, _LIFECYCLE[machine.state], launched_at=launched_at)

    def _report(self, simulation: Simulation) -> None:
        at = self._origin + simulation.now_s
        self._clock.advance(at - self._clock.now())
        self._send(at)

    def _send(self, at: float) -> None:
        paths: list[bytes] = []
        values: list[float] = []
        for machine in self.simulation.machines:
            if machine.state == READY:
                paths += self._paths_of(machine)
                values += self._readings(machine)
        queue = self.simulation.fleet_view().queue
        counts = {
            QueueMetric.WAITING: float(queue.waiting),
            QueueMetric.RUNNING: float(queue.running),
            QueueMetric.SUBMITTED_TOTAL: float(queue.submitted),
            QueueMetric.FINISHED_TOTAL: float(self.simulation.jobs_finished),
            QueueMetric.FINISHED_CORE_SECONDS_TOTAL: self.simulation.finished_core_s,
            QueueMetric.OLDEST_WAIT_SECONDS: queue.oldest_wait_s,
        }
        job_core_s = queue.mean_job_core_s
        if self._sizes_known:
            job_core_s = queue.queued_core_s / queue.waiting if queue.waiting else None
        if job_core_s is not None:
            counts[QueueMetric.JOB_CORE_SECONDS] = job_core_s
        finished = self.simulation.jobs_finished
        if finished != self._quantiles_at:
            self._quantiles_at = finished
            self._quantiles = job_quantiles(self.simulation.newest_finished_core_s(NEWEST_JOBS))
        counts |= self._quantiles
        paths += [self._queue_paths[metric] for metric in counts]
        values += counts.values()
        refused = self._store.append(paths, values, [at] * len(paths), at)
        assert not refused, f"what the simulator reports is well formed: {refused[0]}"

    def _readings(self, machine: Machine) -> tuple[float, float, float, float]:
        busy, idle = machine.busy, self.simulation.config.idle_cpu
        share = busy / machine.cores
        return (
            100.0 * (share + (1.0 - share) * idle),
            100.0 * machine.used_ram_gb / machine.ram_gb,
            float(busy),
            self.simulation.work_lost(machine),
        )

    def _paths_of(self, machine: Machine) -> tuple[bytes, ...]:
        vm = _vm(machine)
        if vm not in self._paths:
            group = self._fleet.groups[machine.kind].key
            metrics = (VmMetric.CPU_PERCENT, VmMetric.RAM_PERCENT, VmMetric.BUSY_CORES, VmMetric.WORK_CORE_SECONDS)
            self._paths[vm] = tuple(VmSeries(self._fleet.name, group, vm, m).path.encode() for m in metrics)
        return self._paths[vm]


def _vm(machine: Machine) -> str:
    return f"i-{machine.number:017x}"


@dataclass(frozen=True, slots=True)
class RehearsalResult:
    """The result of a rehearsal.

    measures: as the simulator counts them (autoscaler specification §11). decisions, changed, held: how many were made,
    changed the fleet, and were changed by a rail. stood_in: those in which the fallback policy decided. events: how
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


def fleet_of(config: SimulationConfig) -> Fleet:
    """Return the fleet of this simulated world: a group per VM type, keyed s, m, l where there are three."""
    kinds = len(config.types)
    keys = tuple("sml") if kinds == 3 else tuple(f"type{k}" for k in range(kinds))
    each = zip(keys, config.types, config.minimum, config.limits, strict=True)
    return Fleet(FLEET, tuple(Group(key, f"{FLEET}-{key}", kind, low, high) for key, kind, low, high in each))


def checked_policy(text: str, fleet: Fleet, models: Models) -> str:
    """Return the policy's full name; raises BadInput for a policy that cannot decide for this fleet."""
    if names_model(text):
        return models.policy(text, fleet).name
    name = text.partition(":")[0]
    if name != "constant" and rule_of(name) is None:
        there = ", ".join([*installed(POLICIES), "constant:N,N,...", "learned", *(m.name for m in shipped_models())])
        raise BadInput("--policy", text, f"choose one of: {there}, model:FILE")
    policy = policy_from_name(text)
    sizes = getattr(policy, "sizes", None)
    if sizes is not None and len(sizes) != len(fleet.groups):
        raise BadInput("--policy", text, f"give {len(fleet.groups)} sizes, one per VM type")
    return policy.name


def _terms(config: SimulationConfig, rails: RailSet, horizon_s: float, job_core_s: float, idle_s: float) -> Terms:
    low, high = zip(*config.boot_ranges_s, strict=True)
    cooldown_s = rails.limits.cooldown_out_s
    return Terms(config.waiting_price_per_hour, horizon_s, job_core_s, cooldown_s, low, high, idle_s)


class Rehearsal:
    """One rehearsal: the loop on a virtual cloud, with its ledger in the file `ledger_path`."""

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
        idle_s: float = IDLE_S,
        horizon_s: float = HORIZON_S,
        typical_job_core_s: float | None = None,
        planned: tuple[WindowSetting, ...] = (),
    ) -> None:
        """Set up; without `hours` it lasts until the last job has finished. Raises BadInput, LedgerUnavailable.

        horizon_s: of the queue rule that stands beside a learned policy. typical_job_core_s: core-seconds of a job
        until one has finished, where the queue does not report the work of its jobs. planned: windows of the fleet's
        schedule, by the virtual clock.
        """
        if ledger_path.exists():
            raise LedgerUnavailable(f"{ledger_path} exists already: a rehearsal begins with a new ledger")
        self._minutes = config.max_steps if hours is None else round(hours * (HOUR_S / MINUTE_S))
        self._trace, self._rails, self._seed = trace, rails, seed
        played = trace if hours is None else never_ending(trace, self._minutes * config.step_s)
        fleet = fleet_of(config)
        clock = self._clock = VirtualClock(START + rails.grace_s)
        store = SeriesStore(watched=[fleet])
        world, sizes_known = rails.world(config), typical_job_core_s is None
        self.cloud = VirtualCloud(fleet, world, played, seed, store, clock, rails.sample_interval_s, sizes_known)
        self.policy = checked_policy(policy, fleet, models)
        needed = inputs_needed(policy)
        self._first_decision = int(needed == ("cpu",) and not rails.measured_before)
        job_core_s = JOB_CORE_S if sizes_known else float(typical_job_core_s or 0.0)
        aggregation = AggregationSettings(
            limits=rails.limits,
            sample_interval_s=rails.sample_interval_s,
            grace_s=rails.grace_s,
            idle_s=idle_s + rails.idle_more_s,
            needed=needed,
            removes_newest=world.removal_choice is RemovalChoice.NEWEST,
            episode_gap_s=rails.episode_gap_s,
            terms=_terms(config, rails, horizon_s, job_core_s, idle_s + rails.idle_more_s),
            job_core_s=job_core_s,
        )
        self.ledger = Ledger.open(f"sqlite:///{ledger_path}")
        self.loop = Loop(
            fleets=(ManagedFleet(fleet, rails.limits, self.policy, (), aggregation, planned=planned),),
            store=FleetStore(self.ledger),
            actuator=self.cloud,
            aggregator=Aggregator(store),
            proposer=Proposer(evaluate_directly, models=models),
            clock=clock,
            mode=Mode.ACT,
            leads=Leads(every=self.ledger.take_epoch("rehearsal", clock.now())),
            protect_busy=False,
        )

    def run(
        self, rails: str, on_minute: Callable[[int, int], None] = lambda minutes, finished: None
    ) -> RehearsalResult:
        """Run all minutes and return the result.

        rails: their name in the result. on_minute: called after each minute with the minutes passed and the jobs done.
        """
        decisions = changed = held = stood_in = 0
        events: Counter[str] = Counter()
        simulation = self.cloud.simulation
        for report in self.minutes(self._minutes):
            for decision in report.decisions:
                decisions += 1
                changed += bool(decision.intents)
                held += any(effect.verdict is not Verdict.PASSED for effect in decision.effects)
                stood_in += bool(decision.policy_failures)
            events.update(event.reason.value for event in report.events if event.reason is not Reason.STARTED)
            on_minute(simulation.steps, simulation.measures().jobs_finished)
        return RehearsalResult(
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
            dict(sorted(events.items())),
        )

    def minutes(self, until: int) -> Iterator[MinuteReport]:
        """Run up to a minute of the rehearsal, and yield what each turn did; LedgerUnavailable when one failed."""
        simulation = self.cloud.simulation
        while not simulation.finished and simulation.steps < until:
            if simulation.steps < self._first_decision:
                self.cloud.minute()
                continue
            report = self.loop.turn(self._clock.now())
            if report.failure is not None:
                raise LedgerUnavailable(report.failure)
            self.cloud.minute()
            yield report

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()


def world_to_rehearse(text: str, prices: str | None = None) -> World:
    """Return the world of a name or a file, with another price table where one is given.

    Raises BadInput, FileRefused, and BadInput too for a world that the loop cannot be run in.
    """
    world = world_named(text)
    config = world.config
    if config.step_s != MINUTE_S or config.compat != EXACT:
        raise BadInput("--world", text, "give one with step_s = 60 and without compat: the loop decides once a minute")
    if prices is None:
        return world
    types = PRICES.get(f"prices-{prices}")
    if types is None:
        names = ", ".join(name.removeprefix("prices-") for name in PRICES)
        raise BadInput("--prices", prices, f"choose one of {names}")
    if [kind.cores for kind in types] != list(config.cores):
        raise BadInput("--prices", prices, f"world {world.name} has other VM types: give prices in its file")
    return replace(world, config=replace(config, types=types))


def play(
    *,
    workload: str,
    policy: str,
    rails: str,
    cooldown_s: float | None,
    hours: float | None,
    world: World,
    seed: int,
    models: Path,
    ledger_path: Path,
    on_minute: Callable[[int, int, int], None],
) -> RehearsalResult:
    """Rehearse; `on_minute` is called after each minute with the minutes passed, the jobs done and the jobs in all.

    world: its cool-down is that of the paper's rails, where none is given; the default rails have their own. models:
    directory of the champion. Raises BadInput, TraceError or LedgerUnavailable.
    """
    config = world.config
    if cooldown_s is None and rails == "paper" and config.cooldown_s > 0.0:
        cooldown_s = config.cooldown_s
    chosen = rail_set(rails, cooldown_s)
    policy, typical = _with_model_file(policy), None
    if world.job_sizes is JobSizes.UNKNOWN:
        typical, policy = world.typical_job_core_s, with_typical_job(policy, world.typical_job_core_s)
    trace = workload_of(workload, max(config.cores))
    shelf = ModelShelf(models)
    with quiet_logs():
        rehearsal = Rehearsal(
            policy, trace, config, chosen, shelf, ledger_path, seed=seed, hours=hours, typical_job_core_s=typical
        )
        try:
            return rehearsal.run(rails, lambda minutes, finished: on_minute(minutes, finished, trace.jobs))
        finally:
            rehearsal.close()


def _with_model_file(policy: str) -> str:
    """Return `model:FILE` for the name of a shipped model, with or without `model:` before it."""
    name = policy.removeprefix(MODEL_FILE)
    file = with_file(name)
    return policy if file == name else f"{MODEL_FILE}{file}"


def with_typical_job(policy: str, job_core_s: float) -> str:
    """Return the text of a policy, a queue rule with what it expects of a job unless it says so itself."""
    name, _, rest = policy.partition(":")
    if name != "queue-rule" or "job_core_s=" in rest:
        return policy
    return f"{name}:{rest}{',' if rest else ''}job_core_s={job_core_s:g}"


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Log no single decisions: the ledger holds them."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
