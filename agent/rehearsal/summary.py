"""The summary of a dry run: jobs, waits and cost, beside other policies and fleets on the same jobs.

The others are simulated: the reference simulator, driven by the agent's decisions. A policy decides through the same
pure function as in the live loop, with all rails; only the fleet and its measurements are simulated, and every fleet
meets the faults of the run. Rent is by the second from a VM's launch, as EC2 bills it.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agent.autoscaling.decide import DecisionInputs, decide
from agent.autoscaling.intents import state_after_outcome
from agent.autoscaling.policies.fallback import Models, Proposer, evaluate_directly
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import LEARNED, names_model
from agent.rails.base import RailLimits
from agent.rails.state import Cooldown, LoopState
from agent.rehearsal.faults import Lack, SimulatedFault, plan_named
from agent.rehearsal.scenario import shell_lines
from domain.controls import Controls
from domain.decisions import CapacityShortage, Decision, Direction, Intent, Mode, Outcome, Reason, Status
from domain.errors import FailureClass
from domain.fleet import Fleet
from domain.observations.autoscaling import Vector, obs_v2
from domain.observed import ReadFailure
from domain.rules.queue_rule import JOB_CORE_S
from domain.snapshot import GroupSnapshot, QueueSnapshot, Snapshot, Terms
from domain.units import MINUTE_S
from domain.workload import Trace
from simulator.autoscaling.configuration import Billing, Dispatch, SimulationConfig
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.view import FleetView
from simulator.autoscaling.world_file import preset

WARM_UP_S = 300.0
AFTER_THE_END_S = 86_400.0


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of one run over the jobs: dollars of rent and of waiting, seconds waited per finished job, jobs done."""

    policy: str
    rent: float
    waiting_cost: float
    mean_wait_s: float
    p95_wait_s: float
    jobs_finished: int

    @property
    def cost(self) -> float:
        """Rent and waiting together (J of autoscaler specification §5)."""
        return self.rent + self.waiting_cost


@dataclass(frozen=True, slots=True)
class FleetParameters:
    """What decisions depend on besides measurements.

    Fleet, rail limits, when a VM is idle for long, a job's size, and what learned policies reckon with.
    """

    fleet: Fleet
    limits: RailLimits
    idle_s: float
    job_core_s: float = JOB_CORE_S
    terms: Terms | None = None


def world_of(fleet: Fleet, initial: tuple[int, ...]) -> SimulationConfig:
    """Return the simulated world that behaves like the dry run's cloud for this fleet.

    It has no cool-down of its own, as the agent's rails have it. Jobs go to one VM after the other, as workers that
    pull them spread them.
    """
    return preset(
        "live-like",
        types=tuple(group.vm_type for group in fleet.groups),
        limits=tuple(group.maximum for group in fleet.groups),
        minimum=tuple(group.minimum for group in fleet.groups),
        initial=initial,
        cooldown_s=0.0,
        dispatch=Dispatch.NEXT_FIT,
        billing=Billing.EXACT,
        integral_penalty=True,
    )


def never_ending(trace: Trace, horizon_s: float) -> Trace:
    """Return the trace with one more job, a day after the horizon: the fleet costs money until then, jobs or not."""
    last: dict[str, float] = {
        "job_id": int(trace.job_id.max(initial=0)) + 1,
        "arrival_s": max(horizon_s, float(trace.arrival_s.max(initial=0.0))) + AFTER_THE_END_S,
        "service_s": 1.0,
        "width": 1,
        "ram_gb": 0.0,
        "stage": int(trace.stage.max(initial=0)),
        "release_after": -1,
        "pause_s": 0.0,
    }
    columns: dict[str, Any] = {name: np.append(getattr(trace, name), value) for name, value in last.items()}
    return replace(trace, **columns)


def snapshot_of(parameters: FleetParameters, view: FleetView, cooldowns: tuple[Cooldown, ...] = ()) -> Snapshot:
    """Return the snapshot that the agent would fold of the simulated fleet, with the cool-downs of its rails."""
    fleet = parameters.fleet
    idle_long, idle = view.idle_long(parameters.idle_s), view.idle_long(0.0)
    left = {(c.group, c.direction): c.remaining_s(view.now_s) for c in cooldowns}
    reported = np.isfinite(view.vm_cpu)
    groups = []
    for k, group in enumerate(fleet.groups):
        mine = view.vm_type == k
        mature = int((mine & (view.vm_ready_s >= parameters.limits.min_lifetime_s)).sum())
        groups.append(
            GroupSnapshot(
                key=group.key,
                requested=int(view.requested[k]),
                in_service=int(view.ready[k]),
                warm=int(view.ready[k]),
                booting=int(view.booting[k]),
                overdue=0,
                draining=int(view.draining[k]),
                silent=0,
                unhealthy=0,
                idle_long=int(idle_long[k]),
                mature=mature,
                minimum=group.minimum,
                maximum=group.maximum,
                removable=tuple(f"{group.key}-{n}" for n in range(mature)),
                cpu_mean=_mean(view.vm_cpu[mine & reported]),
                ram_mean=_mean(view.vm_ram[mine & reported]),
                busy_cores=float(view.vm_cpu[mine & reported].sum() * group.vm_type.cores),
                cooldown_out_s=max(left.get((group.key, Direction.OUT), 0.0), float(view.cooldown_out_s[k])),
                cooldown_in_s=max(left.get((group.key, Direction.IN), 0.0), float(view.cooldown_in_s[k])),
                idle=int(idle[k]),
            )
        )
    cpu = view.vm_cpu[reported]
    warmed_up = view.vm_cpu[reported & (view.vm_ready_s >= WARM_UP_S)]
    queue = view.queue
    return Snapshot(
        fleet=fleet.name,
        bin_end=view.now_s,
        taken_at=view.now_s,
        groups=tuple(groups),
        queue=QueueSnapshot(
            queue.waiting,
            queue.running,
            queue.submitted,
            queue.submitted_recent,
            queue.oldest_wait_s,
            queue.mean_job_core_s,
        ),
        coverage=1.0,
        age_s=0.0,
        cpu_mean=_mean(cpu) if cpu.size else 0.0,
        cpu_mean_warmed_up=_mean(warmed_up),
        terms=parameters.terms,
    )


def _extended(
    parameters: FleetParameters, simulation: Simulation, view: FleetView, cooldowns: tuple[Cooldown, ...]
) -> Vector:
    """Return obs-v2 as the agent computes it: jobs as long as those that have finished, the cool-downs of its rails."""
    queue, limits = view.queue, parameters.limits
    job_core_s = parameters.job_core_s if queue.mean_job_core_s is None else queue.mean_job_core_s
    left = [
        max((c.remaining_s(view.now_s) for c in cooldowns if c.group == group.key), default=0.0)
        for group in parameters.fleet.groups
    ]
    return obs_v2(
        simulation.observe(),
        view.ready,
        view.booting,
        view.maximum,
        np.array(left),
        max(limits.cooldown_out_s, limits.cooldown_in_s),
        queue.waiting,
        queue.waiting * job_core_s,
        parameters.fleet.max_cores,
        queue.oldest_wait_s,
        float(simulation.observe_v2()[-1]),
    )


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    return float(values.mean()) if values.size else None


def run_agent(
    policy: str,
    parameters: FleetParameters,
    trace: Trace,
    initial: tuple[int, ...],
    horizon_s: float,
    seed: int,
    models: Models | None = None,
    faults: Sequence[SimulatedFault] = (),
) -> RunCost:
    """Run the jobs under the agent with this policy and all its rails for `horizon_s`; `models`: for a learned one."""
    proposer = Proposer(evaluate_directly, models=models)
    state = LoopState()
    unmet: tuple[Intent, ...] = ()

    def choose(simulation: Simulation) -> tuple[int, ...]:
        nonlocal state, unmet
        view = simulation.fleet_view()
        for intent in unmet:
            # The minute after AWS had none, the agent reads so, as it does in the live loop.
            outcome = _shortage(parameters.fleet, intent, view.now_s)
            state = state_after_outcome(state, intent, outcome, parameters.limits, view.now_s)
        lacking = {fault.lack for fault in faults if fault.during(view.now_s)}
        blind = Lack.MEASUREMENTS in lacking
        state = replace(state, stale_bins=state.stale_bins + 1 if blind else 0)
        snapshot = None
        if Lack.ANSWERS not in lacking:
            snapshot = replace(
                snapshot_of(parameters, view, state.cooldowns),
                obs7=tuple(simulation.observe().tolist()),
                obs_v2=tuple(_extended(parameters, simulation, view, state.cooldowns).tolist()),
            )
            snapshot = unmeasured(snapshot, state.stale_bins) if blind else snapshot
        inputs = DecisionInputs(
            decision_id=f"{parameters.fleet.name}-{state.decisions + 1}",
            now=view.now_s,
            fleet=parameters.fleet,
            snapshot=snapshot,
            state=state,
            controls=Controls(),
            limits=parameters.limits,
            mode=Mode.ACT,
            leader=True,
            epoch=1,
            policy=policy,
            cloud_failure=UNREADABLE if snapshot is None else None,
        )
        decided = decide(inputs, proposer)
        state = decided.state
        targets = {intent.group: intent.target for intent in decided.decision.intents}
        none_left = _sold_out(faults, view.now_s)
        unmet = tuple(
            intent
            for intent in decided.decision.intents
            if intent.direction is Direction.OUT and _vm_type(parameters.fleet, intent) in none_left
        )
        groups = zip(parameters.fleet.groups, view.requested, strict=True)
        return tuple(targets.get(group.key, int(requested)) for group, requested in groups)

    return _run(policy, choose, world_of(parameters.fleet, initial), trace, horizon_s, seed, faults)


UNREADABLE = ReadFailure(FailureClass.THROTTLE, "every call is throttled")


def unmeasured(snapshot: Snapshot, minutes: int) -> Snapshot:
    """Return the snapshot as the agent folds it when neither VMs nor queue have reported for so many minutes."""
    return replace(
        snapshot,
        queue=None,
        coverage=0.0,
        age_s=minutes * MINUTE_S,
        stale_bins=minutes,
        absent=("cpu", "queue"),
        cpu_mean=None,
        cpu_mean_warmed_up=None,
        obs7=None,
        obs_v2=None,
    )


def _sold_out(faults: Sequence[SimulatedFault], now_s: float) -> frozenset[str]:
    return frozenset(fault.vm_type for fault in faults if fault.lack is Lack.VMS and fault.during(now_s))


def _shortage(fleet: Fleet, intent: Intent, now: float) -> Outcome:
    return Outcome(
        intent.intent_id,
        Status.FAILED,
        Reason.NO_CAPACITY,
        intent.target - intent.before,
        0,
        now,
        failure=FailureClass.CAPACITY,
        shortages=(CapacityShortage(_vm_type(fleet, intent), ""),),
    )


def _vm_type(fleet: Fleet, intent: Intent) -> str:
    return fleet.groups[fleet.index(intent.group)].vm_type.name


def run_constant(
    sizes: tuple[int, ...],
    fleet: Fleet,
    trace: Trace,
    horizon_s: float,
    seed: int,
    faults: Sequence[SimulatedFault] = (),
) -> RunCost:
    """Run the jobs on a fleet of constant size, up from the start; AWS replaces what it takes back."""
    name = f"constant:{','.join(map(str, sizes))}"
    return _run(name, lambda _: sizes, world_of(fleet, sizes), trace, horizon_s, seed, faults)


def _run(
    name: str,
    choose: Callable[[Simulation], tuple[int, ...]],
    world: SimulationConfig,
    trace: Trace,
    horizon_s: float,
    seed: int,
    faults: Sequence[SimulatedFault],
) -> RunCost:
    """Run the jobs; `choose` returns the VMs wanted per group, which a VM that is taken back is still counted among."""
    simulation = Simulation(world, never_ending(trace, horizon_s), seed)
    taken = [fault for fault in faults if fault.lack is Lack.ONE_VM]
    for _ in range(round(horizon_s / world.step_s)):
        wanted = np.array(choose(simulation), dtype=np.int64)
        taken = [f for f in taken if simulation.now_s < f.since_s or not simulation.take_back_busiest()]
        change = wanted - simulation.fleet_view().requested
        sold_out = _sold_out(faults, simulation.now_s)
        none_left = np.array([kind.name in sold_out for kind in world.types])
        simulation.step(np.where(none_left, np.minimum(change, 0), change))
    measures = simulation.measures()
    return RunCost(
        name, measures.rent, measures.penalty, measures.mean_wait_s, measures.p95_wait_s, measures.jobs_finished
    )


def best_constant(
    fleet: Fleet, trace: Trace, horizon_s: float, seed: int, faults: Sequence[SimulatedFault] = ()
) -> RunCost:
    """Return the run of the constant fleet with the least rent and waiting cost, over every size the limits allow.

    The choice needs hindsight: it depends on all jobs. Of sizes with the same price and number of cores, only the one
    with the fewest VMs is tried: with jobs of one core they give the same result.
    """
    ranges = [range(group.minimum, group.maximum + 1) for group in fleet.groups]
    by_worth: dict[tuple[float, int], tuple[int, ...]] = {}
    for sizes in sorted(itertools.product(*ranges), key=sum):
        cores = sum(n * c for n, c in zip(sizes, fleet.cores, strict=True))
        price = sum(n * p for n, p in zip(sizes, fleet.prices_per_hour, strict=True))
        if cores:
            by_worth.setdefault((round(price, 9), cores), sizes)
    runs = (run_constant(sizes, fleet, trace, horizon_s, seed, faults) for sizes in by_worth.values())
    return min(runs, key=lambda run: run.cost)


WAITING_PRICE_PER_HOUR = preset("live-like").waiting_price_per_hour
"""Dollars that a job's hour in the queue counts for (autoscaler specification §5)."""

TRACKING_SHOWN = "AWS target tracking"
LABEL_WIDTH = len("oversubscription")
CONSTANT, QUEUE_RULE, THRESHOLD, TRACKING = "constant", "queue-rule", "threshold", "target-tracking"


@dataclass(frozen=True, slots=True)
class LiveRun:
    """The run itself: its cost, the jobs submitted, and the seconds that all jobs together spent in the queue.

    lost, handed_back: jobs that had to begin again, because their VM was gone, or because it was about to terminate and
    its worker gave them back.
    """

    cost: RunCost
    submitted: int
    waiting_job_s: float
    lost: int
    handed_back: int


@dataclass(frozen=True, slots=True)
class Other:
    """Another fleet on the same jobs, and how its figures were obtained."""

    name: str
    how: str
    run: RunCost


@dataclass(frozen=True, slots=True)
class Actions:
    """How often the agent let the fleet grow and shrink, its most VMs and its fewest after that, and the faults."""

    grew: int
    most_vms: int
    shrank: int
    fewest_vms: int
    faults: tuple[str, ...]

    def sentence(self) -> str:
        """Return them in one sentence."""
        grew = f"grew {_times(self.grew, 'time')} to {_times(self.most_vms, 'VM')}"
        shrank = f"shrank {_times(self.shrank, 'time')} to {_times(self.fewest_vms, 'VM')}"
        return f"{grew}, met {_times(len(self.faults), 'fault')}, {shrank}"


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def actions_of(decisions: Sequence[Decision], faults: Sequence[str]) -> Actions:
    """Return the actions of these decisions, the oldest first."""
    sizes = [sum(made.desired) for made in decisions]
    most = max(range(len(sizes)), key=sizes.__getitem__, default=0)
    ways = [{intent.direction for intent in made.intents} for made in decisions]
    return Actions(
        sum(Direction.OUT in way for way in ways),
        max(sizes, default=0),
        sum(Direction.IN in way for way in ways),
        min(sizes[most:], default=0),
        tuple(faults),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """The run, the others on the same jobs, and the required reasons that the ledger does not hold.

    not_due: those among them that the run was too short for.
    largest: the fleet held at its maximum, from which the saving is counted. simulated: the run in one sentence.
    """

    plan: str
    live: LiveRun
    others: tuple[Other, ...]
    decisions: int
    changes: int
    held: int
    missing: tuple[Reason, ...]
    program: str
    ledger: str
    explain: str
    largest: Other
    mode: Mode = Mode.ACT
    not_due: tuple[Reason, ...] = ()
    simulated: str = ""
    actions: Actions = Actions(0, 0, 0, 0, ())

    @property
    def how(self) -> str:
        """How the run's own figures were obtained."""
        return "measured, with faults" if plan_named(self.plan).faults else "measured, without faults"

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        run = self.live.cost
        return {
            "kind": "summary",
            "story": self.plan,
            "lived": {
                **asdict(run),
                "finished": run.jobs_finished,
                "submitted": self.live.submitted,
                "waiting_job_s": self.live.waiting_job_s,
                "lost": self.live.lost,
                "handed_back": self.live.handed_back,
                "cost": run.cost,
                "how": self.how,
            },
            "actions": asdict(self.actions),
            "saved": {"dollars": self.saved, "against": self.largest.name},
            "others": [
                {"name": other.name, "how": other.how, **asdict(other.run), "cost": other.run.cost}
                for other in self._beside
            ],
            "waiting_price_per_hour": WAITING_PRICE_PER_HOUR,
            "decisions": self.decisions,
            "changes": self.changes,
            "held": self.held,
            "missing": list(self.missing),
            "not_due": list(self.not_due),
            "ledger": self.ledger,
            "next": list(self.next_commands()),
        }

    def next_commands(self) -> tuple[str, ...]:
        """Return three commands worth trying, as they are typed where this one was."""
        return tuple(shlex.join(command) for command in self.next_words())

    def next_words(self) -> tuple[tuple[str, ...], ...]:
        """Return the words of those commands."""
        return (
            (self.program, "explain", self.explain, "--ledger", self.ledger),
            (self.program, "replay", "--policy", THRESHOLD, "--ledger", self.ledger),
            (self.program, "decisions", "--changed", "--ledger", self.ledger),
        )

    def brief(self, lines: Mapping[str, str], width: int) -> RenderableType:
        """Return it in ten lines: the run, the actions, the bill, `lines` by their label, and commands.

        width: columns of the terminal, for the commands. The bound of hindsight comes last.
        """
        acts = self.mode is Mode.ACT
        above = {
            "simulated": self.simulated,
            "agent": self.actions.sentence() if acts else f"only observed: {_times(self.decisions, 'decision')}",
            "bill": self._bill(self.live.cost),
        }
        last = {}
        for run in (other.run for other in self.others):
            if run.policy.startswith(TRACKING):
                above[TRACKING] = self._bill(run)
            elif run.policy.startswith(CONSTANT):
                best = f"${run.cost:.2f}{self._apart(run)} for {_spelled(run)} VMs throughout, the best constant"
                last["in hindsight"] = best
        above |= {"at maximum": self._bill(self.largest.run), **lines}
        commands = [Text(shell_lines(words, width), style="cyan") for words in self.next_words()]
        return Group(_labelled(above), *commands, _labelled(last))

    def _bill(self, run: RunCost) -> str:
        done = f", {run.jobs_finished} jobs done" if run.jobs_finished < self._done else ""
        return (
            f"${run.cost:.2f}{self._apart(run)}: VMs ${run.rent:.2f}, waiting ${run.waiting_cost:.2f}; "
            f"wait {run.mean_wait_s:.0f} s, 95% {run.p95_wait_s:.0f} s{done}"
        )

    @property
    def _done(self) -> int:
        """Jobs below which a run's bill names those done: the most of any run, less 1 %."""
        return round(0.99 * max(run.jobs_finished for run in (self.live.cost, *(one.run for one in self._beside))))

    def _apart(self, run: RunCost) -> str:
        own = self.live.cost.cost
        return "" if run is self.live.cost or not own else f" ({run.cost / own - 1.0:+.0%})"

    @property
    def _beside(self) -> tuple[Other, ...]:
        return (*self.others, self.largest)

    @property
    def saved(self) -> float:
        """Dollars of rent and waiting less than the fleet held at its maximum; negative where it cost more."""
        return self.largest.run.cost - self.live.cost.cost

    def table(self) -> RenderableType:
        """Return the comparison as a table and what its columns mean."""
        table = Table(box=None, pad_edge=False, header_style="dim", title="The same jobs, other fleets")
        table.title_justify, table.title_style = "left", "bold"
        table.add_column("", ratio=1)
        for heading in ("rent", "waiting", "total", "mean wait", "95 %", "done"):
            table.add_column(heading, justify="right", no_wrap=True)
        own = Other(f"this run: {self.live.cost.policy.partition(':')[0]}", self.how, self.live.cost)
        for row in (own, *self._beside):
            run = row.run
            table.add_row(
                Text.assemble(row.name, "\n", (f"  {row.how}", "dim not bold")),
                f"${run.rent:.2f}",
                f"${run.waiting_cost:.2f}",
                f"${run.cost:.2f}",
                f"{run.mean_wait_s:.0f} s",
                f"{run.p95_wait_s:.0f} s",
                f"{run.jobs_finished}",
                style="bold" if row is own else "",
            )
        legend = Text(
            f"rent: from a VM's launch to its end. waiting: ${WAITING_PRICE_PER_HOUR:g} for a job's hour in the queue. "
            f"mean wait, 95 %: of the jobs done, of {self.live.submitted} submitted. "
            "Every policy keeps the same rails.",
            style="dim",
        )
        return Group(table, legend)


def _labelled(lines: Mapping[str, str]) -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True, style="bold", min_width=LABEL_WIDTH)
    rows.add_column(ratio=1)
    for label, line in lines.items():
        rows.add_row(label, line, style="bold" if label == "bill" else "")
    return rows


def compare(
    parameters: FleetParameters,
    policy: str,
    trace: Trace,
    initial: tuple[int, ...],
    horizon_s: float,
    seed: int,
    models: ModelShelf | None = None,
    faults: Sequence[SimulatedFault] = (),
) -> tuple[Other, ...]:
    """Return the run's own policy, others of the agent and two constant fleets on the same jobs and faults, simulated.

    The others are the learned policy, where `models` have one that fits the fleet, the queue rule too, the 75 %
    threshold, and target tracking, on that fleet of `tracked_fleets` that costs less. Of the constant fleets the best
    comes first, then the one held at its maximum.
    """
    own = policy.partition(":")[0]
    names = {policy: own}
    if names_model(policy):
        names[QUEUE_RULE] = QUEUE_RULE
    elif models is not None and models.fits(LEARNED, parameters.fleet):
        names[LEARNED] = LEARNED
    if own != THRESHOLD:
        names[THRESHOLD] = f"75 % {THRESHOLD}"
    same = "simulated, same faults" if faults else "simulated, without faults"
    others = [
        Other(name, same, run_agent(text, parameters, trace, initial, horizon_s, seed, models, faults))
        for text, name in names.items()
    ]
    tracked = [
        run_agent(TRACKING, replace(parameters, fleet=one), trace, least, horizon_s, seed, models, faults)
        for one, least in tracked_fleets(parameters.fleet)
    ]
    others.append(Other(TRACKING_SHOWN, same, min(tracked, key=lambda run: run.cost)))
    fleet = parameters.fleet
    best = best_constant(fleet, trace, horizon_s, seed, faults)
    most = tuple(group.maximum for group in fleet.groups)
    largest = run_constant(most, fleet, trace, horizon_s, seed, faults)
    return (
        *others,
        Other(f"best in hindsight: {_spelled(best)}", same, best),
        Other(f"held at maximum: {_spelled(largest)}", same, largest),
    )


def tracked_fleets(fleet: Fleet) -> tuple[tuple[Fleet, tuple[int, ...]], ...]:
    """Return fleets as target tracking is set up, with their first sizes: the same groups, and one of the smallest VMs.

    An empty group has no CPU to track: each has one VM at least. The one group may have as many cores.
    """
    same = replace(fleet, groups=tuple(replace(group, minimum=max(1, group.minimum)) for group in fleet.groups))
    small = min(fleet.groups, key=lambda group: (group.vm_type.cores, group.vm_type.price_per_hour))
    cores = sum(group.minimum * group.vm_type.cores for group in fleet.groups)
    least = max(1, -(-cores // small.vm_type.cores))
    alone = replace(small, minimum=least, maximum=max(least, fleet.max_cores // small.vm_type.cores))
    found = (same, replace(fleet, groups=(alone,)))
    return tuple((one, tuple(group.minimum for group in one.groups)) for one in found)


def _spelled(constant: RunCost) -> str:
    return constant.policy.partition(":")[2].replace(",", " + ")
