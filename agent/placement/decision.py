"""What placement brings to the agent: pools of hosts on which containers are placed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.kernel.checks import advice, missing, ok
from agent.kernel.decision import (
    Capacity,
    Card,
    ContainerRoom,
    Explanation,
    Host,
    ModelSummary,
    Part,
    Services,
    Status,
    Summary,
    Turn,
)
from agent.kernel.guards import held_by_pause
from agent.kernel.metrics import Section, counter, gauge
from agent.kernel.store import Record
from agent.kernel.turn import Severity, TurnReport
from agent.ledger import codec
from agent.placement.settings import SUBJECTS
from agent.placement.state import KEPT, PLACEMENT, PlacementStore, read_decision
from domain.decisions import Direction, Event, Mode, Reason
from domain.errors import ConfigurationError, TrimtabError
from domain.subject import Subject, fleet_subject

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import APIRouter

    from agent.kernel.checks import CheckResult
    from agent.kernel.metrics import Reading
    from agent.placement.reserve import PlacementPool
    from agent.placement.turn import PoolTurns
    from agent.settings import Settings
    from collectors.base import Collector

NEWEST = 10


class Pools(Services["PlacementPool"]):
    """Pools by name, and the turns of each; any thread may use them."""

    def __init__(self, turns: Mapping[str, PoolTurns]) -> None:
        super().__init__({name: one.pool for name, one in turns.items()})
        self.turns = turns


class PlacementPart(Part):
    """The placement pools of one agent."""

    name = PLACEMENT
    subject_word = "placement"
    id_letters = "p"
    order = 40
    kept = KEPT
    configured_in = SUBJECTS.name
    model_suffixes = (".json",)
    learns = True
    asks = (
        *("requests", "*/requests", "*/what-if", "*/extender/filter", "*/extender/prioritize"),
        *(f"*/requests/*/{verb}" for verb in ("confirm", "cancel", "release", "move")),
    )
    lists = ("*/applications/*", "*/what-if", "*/extender/filter", "*/extender/prioritize")
    rehearsal = "agent.rehearsal.placements:SECTION"
    sections = (
        Section(
            "Placement",
            (
                gauge("placement_hosts", "Hosts of a pool.", "pool", "state"),
                gauge("placement_open_hosts", "Hosts on which containers run.", "pool"),
                counter("placement_host_hours", "Hours of open hosts since the start of the ledger.", "pool"),
                gauge("placement_lower_bound_hosts", "Lower bound of hosts for the running containers.", "pool"),
                gauge("placement_gap_ratio", "Open hosts over the lower bound, less 1.", "pool", unit="ratio"),
                gauge(
                    "placement_allocation_ratio",
                    "Share of the open hosts' capacity that is taken.",
                    "pool",
                    "dimension",
                ),
                gauge("placement_headroom_hosts", "Open hosts by least number of free cores.", "pool", "cores"),
                gauge(
                    "placement_headroom_target_hosts",
                    "Hosts kept free by the policy, by least number of free cores.",
                    "pool",
                    "cores",
                ),
                gauge("placement_free_cores", "Free cores of the hosts that take containers.", "pool"),
                gauge(
                    "placement_stranded_ratio",
                    "Share of the open hosts' free cores on hosts that cannot take 8 cores and 16 GiB.",
                    "pool",
                ),
                gauge("placement_containers", "Containers that run or are reserved.", "pool"),
                gauge("placement_reserved_cores", "Cores of containers that are not confirmed.", "pool"),
                gauge("placement_pending_cores", "Cores that the pool's fleet waits for.", "pool"),
                gauge("placement_violating_hosts", "Hosts with containers that may not run there now.", "pool"),
                gauge("placement_decision_seconds", "Duration of the newest request, with its record.", "pool"),
                gauge(
                    "placement_drift_ratio",
                    "Distance of the last day's mix of requests from that of the 14 days before.",
                    "pool",
                ),
                gauge(
                    "placement_training_drift_ratio",
                    "Distance of the last day's requests and of the hosts from the policy's training data.",
                    "pool",
                    "part",
                ),
                gauge(
                    "placement_lifetime_r2_ratio",
                    "Share of the variance of the logarithm of lifetimes that expected lifetimes explain.",
                    "pool",
                ),
                counter("placement_requests", "Requests decided since the start of the ledger.", "pool"),
                counter("placement_hinted_requests", "Requests with an expected lifetime.", "pool"),
                counter("placement_decisions", "Decisions since the start of the ledger.", "pool"),
                counter("placement_placed_containers", "Containers placed since the start of the ledger.", "pool"),
                counter("placement_refused_containers", "Containers that found no host.", "pool", "reason"),
                counter("placement_lapsed_requests", "Reservations that were not confirmed in time.", "pool"),
                counter("placement_replaced_requests", "Requests in which best fit replaced the policy.", "pool"),
            ),
        ),
    )
    alarms = MappingProxyType(
        {
            Reason.CONTAINERS_LOST: Severity.CRITICAL,
            Reason.PLACEMENT_REFUSING: Severity.WARNING,
            Reason.PLACEMENT_GAP: Severity.WARNING,
            Reason.PLACEMENT_DRIFTED: Severity.WARNING,
            Reason.UNLIKE_TRAINING: Severity.WARNING,
            Reason.POLICY_REPLACED: Severity.WARNING,
            Reason.INVENTORY_REFUSED: Severity.WARNING,
        }
    )

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.store = PlacementStore(host.ledger)

    @cached_property
    def pools(self) -> Pools:
        """The pools that the settings describe; where there are none, nothing of them is loaded."""
        if not self.configured:
            return Pools({})
        from agent.placement.turn import turns_of

        return Pools(turns_of(self.host))

    def capacity(self, subject: str) -> Capacity | None:
        """Return the free cores of a pool, those that its fleet waits for, and those reserved and not confirmed."""
        if subject not in self.configured:
            return None
        view = self.pools[subject].view()
        return Capacity(float(view.figures.free_cores), view.pending_cores, float(view.reserved_cores))

    def room(self, subject: str, application: str) -> ContainerRoom | None:
        """Return the room of a pool for containers of an application; UnknownName for one that it does not know.

        VMs that its fleet may still start count by their cores alone, an upper bound, and not at all where no VM type
        of it takes a container. A paused pool has none.
        """
        if subject not in self.configured:
            return None
        pool = self.pools[subject]
        found, cores, fleet = pool.capacity_for(application), pool.cores_of()[application], pool.fleet()
        paused = held_by_pause(self.controls(subject), (Direction.OUT,), self.host.clock.now())
        if paused is not None:
            return ContainerRoom(0, cores, f"the pool {subject} is paused: {paused.detail}")
        more = 0 if fleet is None else int(((fleet.free or 0.0) + fleet.pending) / pool.head.rate) // cores
        more = more if self._takes(pool, application) else 0
        why = ", ".join(f"{reason} {hosts}" for reason, hosts in found.infeasible.items())
        detail = f"{found.containers:,} containers of {application} fit in the pool {subject}"
        detail += f" ({why})" if why else ""
        detail += f", at most {more:,} on VMs that its fleet may start" if pool.settings.fleet is not None else ""
        detail += f"; {pool.problem}" if pool.problem else ""
        return ContainerRoom(found.containers + more, cores, detail)

    def _takes(self, pool: PlacementPool, application: str) -> bool:
        """Return whether an empty VM of the pool's fleet takes a container; True where its VM types are not known."""
        from agent.placement.fleet import takes
        from collectors.tagged_groups import VmSize

        fleets = {} if self.host.settings is None else self.host.settings.fleets
        described = fleets.get(pool.settings.fleet or "")
        if described is None:
            return True
        groups = {key: VmSize(one.cores, one.memory_gb) for key, one in described.groups.items()}
        return takes(pool.application_of(application), groups, pool.settings, pool.head.rate)

    def retained(self, fleet: str) -> Set[str]:
        """Return the VMs of a fleet whose hosts take containers or have some, where the agent acts."""
        return frozenset[str]().union(
            *(pool.retained() for pool in self.pools.values() if pool.settings.fleet == fleet and pool.mode is Mode.ACT)
        )

    # In the daemon

    def collectors(self) -> Sequence[Collector]:
        """Return what measures the demand of each pool on its fleet; nothing is reserved where the agent observes."""
        from agent.placement.demand import SIGNAL, FleetDemand

        settings = self.host.settings
        if settings is None or settings.mode is not Mode.ACT:
            return ()
        return [
            FleetDemand(pool, fleet, signal=SIGNAL in settings.fleets[fleet].signals)
            for pool in self.pools.values()
            if (fleet := pool.settings.fleet) is not None and fleet in settings.fleets
        ]

    def turn(self, turn: Turn) -> TurnReport:
        """Turn every pool after the fleets; one pool's trouble stops no other."""
        turns, monotonic = self.pools.turns, self.host.clock.monotonic()
        return self.turn_led(turn, lambda name, epoch: turns[name].turn(turn.now, monotonic, epoch))

    def couples(self) -> Iterator[tuple[Subject, Subject]]:
        """Yield each pool with its fleet and with the pool whose rate it takes."""
        settings = self.host.settings
        for name, pool in SUBJECTS.of(settings).items() if settings is not None else ():
            if pool.fleet is not None:
                yield Subject(self.name, name), fleet_subject(pool.fleet)
            if pool.oversubscription_pool is not None:
                yield Subject(self.name, name), Subject("oversubscription", pool.oversubscription_pool)

    def events(self, now: float) -> tuple[Event, ...]:
        """Return what happened in the pools since the last call."""
        return tuple(event for pool in self.pools.values() for event in pool.alarms())

    def problems(self) -> Mapping[str, str]:
        """Return what keeps a pool from its inventory, its fleet or its policy."""
        found = {}
        for name, pool in self.pools.items():
            found[f"placement {name}"] = "; ".join(filter(None, (pool.problem, pool.chooser.problems())))
        return found

    def reload(self) -> None:
        """Read the files of policies again."""
        for pool in self.pools.values():
            pool.chooser.look()

    # For people and programs

    def readings(self) -> Iterator[Reading]:
        """Yield every pool's figures and counts."""
        for name, pool in self.pools.items():
            yield from _readings(name, pool, self.pools.turns[name].drift)

    def status(self, subject: str, now: float) -> Status:
        """Return a pool's hosts, how full they are, what is reserved, and its newest decisions."""
        if subject not in self.configured:
            return super().status(subject, now)
        from agent.placement.view import most_ended, pool_lines

        view, curves = self.pools[subject].view(), self.pools[subject].curves()
        newest = self.store.newest(subject, NEWEST)
        lines = pool_lines(view, [f"{made.decision_id}  {made.detail}" for made in newest], curves)
        survival = {
            "applications": len(curves),
            "most_ended": [codec.plain(curve) for curve in most_ended(curves)],
            "all": f"/api/v1/placement/{subject}/applications",
        }
        data = {**codec.plain(view), "survival": survival, "newest": [codec.plain(made) for made in newest]}
        return Status(subject, (*lines, *(f"  {line}" for line in self.held(subject, now))), data)

    def card(self, subject: str, now: float) -> Card | None:
        """Return a pool's card, None for one that the settings do not describe."""
        if subject not in self.configured:
            return None
        from agent.placement.view import pool_card

        newest = self.store.newest(subject, 1)
        paused = any(pause.active(now) for pause in self.controls(subject).pauses)
        pool = self.pools[subject]
        return pool_card(pool.view(), newest[0] if newest else None, paused=paused, curves=pool.curves())

    def router(self) -> APIRouter:
        """Return the routes of placement."""
        from agent.placement.api import create_router

        return create_router(self)

    def summary(self, record: Record) -> Summary:
        """Return a decision in one line."""
        made = read_decision(record)
        return Summary(made.detail, made.reason.value)

    def explain(self, record: Record) -> Explanation:
        """Return the hosts of a request with the terms of their scores, and what kept others from taking it."""
        from agent.placement.records import Comparison, MoveDecision
        from agent.placement.view import comparison_lines, move_lines, request_lines

        made = read_decision(record)
        if isinstance(made, MoveDecision):
            lines = move_lines(made)
        elif isinstance(made, Comparison):
            lines = comparison_lines(made)
        else:
            lines = request_lines(made)
        return Explanation(tuple(lines), codec.plain(made))

    @classmethod
    def model(cls, path: Path) -> ModelSummary:
        """Return the policy in a file; ModelRefused says why it would be refused."""
        from agent.models.directory import refused
        from agent.placement.choosing import operable, read_policy
        from domain.rules.placement.policies import policy_document

        try:
            policy = operable(read_policy(path))
        except ConfigurationError as error:
            raise refused(path, str(error)) from None
        does = f"{policy.name}: {policy.family} of {len(policy.theta)} numbers"
        return ModelSummary(policy_document(policy), does=does, limits=cls.name)

    @classmethod
    def files(cls, settings: Settings) -> Iterator[CheckResult]:
        """Yield whether each pool's inventory, policy and fleet can be used."""
        from agent.placement.choosing import check_policies
        from agent.placement.turn import check_inventory

        for name, pool in SUBJECTS.of(settings).items():
            subject = f"placement {name}"
            if pool.inventory_file is None and pool.fleet is None:
                variable = f"TRIMTAB_PLACEMENTS__{name}__INVENTORY_FILE"
                yield advice(subject, "it has no applications, and no hosts until some join", f"set {variable}")
            if pool.inventory_file is not None:
                try:
                    yield ok(subject, check_inventory(pool.inventory_file, hosts_elsewhere=pool.fleet is not None))
                except (TrimtabError, OSError) as error:
                    yield missing(subject, str(error), "correct the file")
            for text, why in check_policies(name, pool, settings):
                yield ok(subject, f"policy {text}") if not why else missing(subject, why, "correct the file, or set bf")


def _readings(name: str, pool: PlacementPool, drift: float) -> Iterator[Reading]:
    view = pool.view()
    figures, head = view.figures, view.head
    for state, number in figures.hosts.items():
        yield "placement_hosts", (name, state), number
    yield "placement_open_hosts", (name,), figures.open_hosts
    yield "placement_host_hours_total", (name,), view.host_hours
    yield "placement_lifetime_r2_ratio", (name,), view.lifetimes.r2
    yield "placement_requests_total", (name,), head.requests
    yield "placement_hinted_requests_total", (name,), head.hinted
    yield "placement_lower_bound_hosts", (name,), figures.lower_bound
    yield "placement_gap_ratio", (name,), figures.gap
    for dimension, share in figures.allocation.items():
        yield "placement_allocation_ratio", (name, dimension), share
    for cores, number in figures.headroom.items():
        yield "placement_headroom_hosts", (name, cores), number
    for free, target in pool.chooser.targets().items():
        yield "placement_headroom_target_hosts", (name, str(free)), target
    yield "placement_free_cores", (name,), figures.free_cores
    yield "placement_stranded_ratio", (name,), figures.stranded
    yield "placement_containers", (name,), figures.containers
    yield "placement_reserved_cores", (name,), view.reserved_cores
    yield "placement_pending_cores", (name,), view.pending_cores
    yield "placement_violating_hosts", (name,), figures.in_violation
    yield "placement_decision_seconds", (name,), view.decision_ms / 1000.0
    yield "placement_drift_ratio", (name,), drift
    for part, distance in view.training_distance.items():
        yield "placement_training_drift_ratio", (name, part), distance
    yield "placement_decisions_total", (name,), head.decisions
    yield "placement_placed_containers_total", (name,), head.containers
    for reason, number in head.refusals.items():
        yield "placement_refused_containers_total", (name, reason), number
    yield "placement_lapsed_requests_total", (name,), head.lapsed
    yield "placement_replaced_requests_total", (name,), head.replaced
