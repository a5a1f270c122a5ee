"""The records of the compiled simulator: the weeks, the machines, the guard, the copies of the cluster, their books."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.rates import FILTER as FILTERED
from domain.rules.oversubscription.rates import NO_MARGIN, SHIELD, Margin, check_budget
from domain.rules.oversubscription.request_rule import NEUTRAL, RequestRule, Weights
from domain.rules.oversubscription.usage import drifted_means, moments_of, turned_excess
from simulator.compilation import fields
from simulator.oversubscription.scenario import Scenario, Week

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
"""Rows of a week, machines and subscribers, VM by VM: half the memory that a request touches."""
Flags = NDArray[np.bool_]

NOWHERE, REJECTED = -1, -2
"""Machine of a VM that has not come or is left out, and of one for which there was no room."""
UNGUARDED, ESCALATE, FILTER = 0, 1, 2
"""Kinds of guard: none, a higher rate for a risky machine, another machine in place of a risky one."""

BOOKS: np.dtype[Any] = np.dtype(
    [
        *fields("u8", "seed"),
        *fields("i8", "week hour"),
        # Machines that ever had a VM come first; `used` have one now.
        *fields("i8", "opened used peak alive rejects"),
        # Requests whose rate the guard raised, and those for which nothing was safe.
        *fields("i8", "raised unsafe"),
        *fields("f8", "requested saved"),
        *fields("i8", "hot_hours"),
        *fields("f8", "expected_hot_hours"),
    ]
)


class Weeks(NamedTuple):
    """Weeks of one scenario side by side, shorter ones padded: (W, VMs), (W, hours + 1), (W, hours, N, 3)."""

    subscriber: Rows
    cores: Floats
    memory: Floats
    network: Floats
    warm: Ints
    first: Ints
    """Requests of hour t are the rows first[t] to first[t + 1]."""
    leaving: Rows
    """Rows in the order in which they depart; those of hour t from leaving_first[t] to leaving_first[t + 1]."""
    leaving_first: Ints
    asked: Floats
    """Cores, memory and network requested by hour and subscriber."""


class Cluster(NamedTuple):
    """The machines."""

    machines: int
    cores: float
    memory: float
    network: float
    threshold: float
    violation_hours: int
    prefill_rate: float
    unit: float
    """Cores requested per hour that make a reward of 1."""


class Tables(NamedTuple):
    """Moments of one VM's usage by subscriber and hour of day, (N, 24), and the correlation within a subscriber."""

    mean: Floats
    variance: Floats
    third: Floats
    rho: float


class Rule(NamedTuple):
    """A rule that sets the rate of each request in place of its subscriber's (domain.rules, `request_rule`)."""

    wanted: Floats
    """By hour and subscriber, (hours, N); without rows where rates are given."""
    weights: Weights


class Guard(NamedTuple):
    """How each request's machine is looked at: the rule of its rate, then the check (§12.4, §12.4b, §12.6)."""

    kind: int
    watched: bool
    """Whether moments are summed by machine and hour of day: a guard looks at them, and so does a rule."""
    rule: Rule
    budget: float
    """Expected hot hours of a machine in the next 24 hours."""
    levels: Floats
    posterior: bool
    persistence: float
    shared: float
    mu: Floats
    sd: Floats
    factor: float
    """A mean counts as `factor` times itself and its excess, (N, 24): the drift of usage that there is room for."""
    excess: Floats
    moved: Floats
    """By how much a mean moves over usual drifts, (N, 24), and how far it may spread; without rows where there is no
    room for them."""
    spread: Floats


class Copies(NamedTuple):
    """B clusters: every array has the copy as its first axis."""

    books: NDArray[np.void]
    free_cores: Floats
    free_memory: Floats
    free_network: Floats
    vms: Rows
    loads: Floats
    """Sums of the VMs' cores, of their squares and cubes, by subscriber and machine, (B, 3, N, K)."""
    machine: Rows
    rate: Floats
    alive: Rows
    """Rows of the VMs alive, and the place of each row in there; empty where no usage is drawn."""
    place: Rows
    present: Floats
    """Cores assigned and requested, memory and network of the VMs alive, (B, N, 4), and their number; empty where
    nothing is observed."""
    vms_of: Floats
    chance: Floats
    """Chance of each machine to be hot in the last hour, (B, K)."""
    usage: Floats
    hot: Flags
    day: Floats
    """Watched copies: moments of each machine's usage by hour of day, (B, K, 3, 24)."""
    worst: Ints
    own: Floats
    """With beliefs: the moments that each VM contributes, (B, VMs, 3, 24)."""
    residual: Floats
    seen: Ints


State = Copies
"""One copy: the arrays of Copies without the first axis, the books as an array of one."""


def cluster_layout(scenario: Scenario) -> Cluster:
    """Return the machines of a scenario as compiled code takes them."""
    return Cluster(
        scenario.machines,
        scenario.machine_cores,
        scenario.machine_memory_gb,
        scenario.machine_network_gbps,
        scenario.threshold,
        scenario.violation_hours,
        scenario.prefill_rate,
        scenario.hourly_cores,
    )


def stack(scenario: Scenario, weeks: Sequence[Week]) -> Weeks:
    """Return weeks of a scenario side by side."""
    hours, most = scenario.hours, max(1, *(len(week.ids) for week in weeks))
    shape = (len(weeks), most)
    stacked = Weeks(
        subscriber=np.zeros(shape, np.int32),
        cores=np.zeros(shape),
        memory=np.zeros(shape),
        network=np.zeros(shape),
        warm=np.zeros(len(weeks), np.int64),
        first=np.zeros((len(weeks), hours + 1), np.int64),
        leaving=np.zeros(shape, np.int32),
        leaving_first=np.zeros((len(weeks), hours + 1), np.int64),
        asked=np.zeros((len(weeks), hours, scenario.subscribers, 3)),
    )
    for i, week in enumerate(weeks):
        count = len(week.ids)
        stacked.subscriber[i, :count] = week.subscriber
        columns = (week.cores, week.memory_gb, week.network_gbps)
        for target, column in zip(stacked[1:4], columns, strict=True):
            target[i, :count] = column
        stacked.warm[i] = week.warm
        stacked.first[i] = week.warm + np.searchsorted(week.arrival[week.warm :], np.arange(hours + 1))
        order = np.argsort(week.departure, kind="stable")
        stacked.leaving[i, :count] = order
        stacked.leaving_first[i] = np.searchsorted(week.departure[order], np.arange(hours + 1))
        asked = slice(week.warm, count)
        where = (week.arrival[asked], week.subscriber[asked])
        for j, column in enumerate((week.cores, week.memory_gb, week.network_gbps)):
            np.add.at(stacked.asked[i, :, :, j], where, column[asked])
    return stacked


def empty_copies(
    copies: int,
    subscribers: int,
    vms: int,
    cluster: Cluster,
    guard: Guard,
    *,
    observed: bool = False,
    drawn: bool = False,
) -> Copies:
    """Return room for so many clusters; each is made ready by a reset.

    observed: whether clusters are observed; drawn: whether the usage of VMs is drawn hour by hour.
    """
    machines = cluster.machines
    listed, watched = vms if drawn else 0, subscribers if observed else 0
    guarded = machines if guard.watched else 0
    believed = vms if guard.posterior else 0
    return Copies(
        books=np.zeros(copies, BOOKS),
        free_cores=np.full((copies, machines), cluster.cores),
        free_memory=np.full((copies, machines), cluster.memory),
        free_network=np.full((copies, machines), cluster.network),
        vms=np.zeros((copies, machines), np.int32),
        loads=np.zeros((copies, 3, subscribers, machines)),
        machine=np.full((copies, vms), NOWHERE, np.int32),
        rate=np.zeros((copies, vms)),
        alive=np.zeros((copies, listed), np.int32),
        place=np.zeros((copies, listed), np.int32),
        present=np.zeros((copies, watched, 4)),
        vms_of=np.zeros((copies, watched)),
        chance=np.zeros((copies, machines)),
        usage=np.zeros((copies, machines)),
        hot=np.zeros((copies, machines), np.bool_),
        day=np.zeros((copies, guarded, 3, 24)),
        worst=np.zeros((copies, guarded), np.int64),
        own=np.zeros((copies, believed, 3, 24)),
        residual=np.zeros((copies, believed)),
        seen=np.zeros((copies, believed), np.int64),
    )


KINDS = {"none": UNGUARDED, SHIELD: ESCALATE, FILTERED: FILTER}


def unguarded(scenario: Scenario) -> Guard:
    """Return the guard that lets everything pass."""
    levels, excess = np.array(scenario.actions), np.zeros(scenario.mu.shape)
    known = (scenario.mu, scenario.sd, 1.0, excess, excess[:0], excess[:0])
    return Guard(UNGUARDED, False, Rule(excess[:0], NEUTRAL), 1.0, levels, False, 0.0, 0.0, *known)


def ruled(guard: Guard, rule: RequestRule, hours: int) -> Guard:
    """Return the guard with a rule before it that sets the rate of each request; the given rates then count no more.

    The rule sees the usage that the guard expects, with the room for drifts that it leaves.
    """
    return guard._replace(watched=True, rule=Rule(rule.wanted(np.arange(hours)), rule.weights))


def guard_of(
    scenario: Scenario,
    kind: str,
    budget: float,
    *,
    posterior: bool = False,
    persistence: float = 0.85,
    shared: float = 0.0,
    margin: Margin = NO_MARGIN,
) -> Guard:
    """Return a guard: `shield` raises the rate of a risky request, `filter` looks for another machine; BadInput.

    budget: expected hot hours of a machine in the next day. posterior: learn each VM's own level from its usage;
    persistence and shared are the shares of the variance that are a VM's offset and its owner's. margin: the drift of
    usage that it leaves room for; spreads are taken to stay as they are.
    """
    if kind not in KINDS:
        raise BadInput("guard", kind, f"choose one of {', '.join(KINDS)}")
    check_budget("b", budget)
    if not (0.0 <= persistence < 1.0 and 0.0 <= shared < 1.0 and persistence + shared < 1.0):
        raise BadInput("psi", persistence, "give shares of the variance that leave some for the hour's noise")
    if posterior and KINDS[kind] == UNGUARDED:
        raise BadInput("guard", kind, "choose shield or filter: without a guard nothing uses the beliefs")
    levels, known, excess = np.array(scenario.actions), (scenario.mu, scenario.sd), np.zeros(scenario.mu.shape)
    moved, spread = excess[:0], excess[:0]
    if margin.turn_h or margin.spread:
        mean = moments_of(*known).mean
        excess = turned_excess(mean, margin.turn_h)
        if margin.spread:
            moved, spread = drifted_means(mean)
    shares = (posterior, persistence, shared)
    watched, rule = KINDS[kind] != UNGUARDED, Rule(excess[:0], NEUTRAL)
    checked = Guard(KINDS[kind], watched, rule, budget, levels, *shares, *known, 1.0, excess, moved, moved)
    return checked._replace(factor=margin.factor, spread=margin.spread * spread)
