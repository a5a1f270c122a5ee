"""A pool on a fleet: hosts that end soonest drain while the fleet shrinks, and a VM with containers stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agent.autoscaling.decision import AutoscalingPart
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.kernel.decision import Capacity
from agent.ledger import Ledger
from agent.placement.decision import PlacementPart
from agent.placement.demand import FleetDemand
from agent.placement.fleet import FleetVms, merged, to_drain
from agent.placement.records import HostRecord, HostState, Origin
from agent.placement.reserve import PlacementPool
from agent.rails.base import RailContext, RailLimits
from domain.clock import VirtualClock
from domain.controls import Controls
from domain.decisions import Mode, Reason
from domain.observed import DrainHook
from tests.agent.autoscaling.snapshot.scene import FLEET as FLEET_OF_TWO
from tests.agent.autoscaling.snapshot.scene import T0, Scene, running
from tests.agent.autoscaling.test_decide import decided
from tests.agent.placement.hosts import app, ask, inventory, kind, made
from tests.agent.placement.test_turn import turn, turns_of

VM = HostRecord("i-1", (15, 60, 100), Origin.FLEET, HostState.UP, "a", "l", (15, 60, 100), "m5a.4xlarge")
"""Of 16 cores, one of which is set aside."""
VMS = {name: replace(VM, name=name) for name in ("i-1", "i-2", "i-3")}
LISTED = FleetVms(VMS, set(VMS))


class Listing:
    """What AWS lists, in place of a reader of it."""

    def __init__(self, found: FleetVms) -> None:
        self.found = found

    def read(self, groups: Mapping[str, str]) -> FleetVms:
        return self.found


def pool_of(ledger: Ledger, clock: VirtualClock, **more: Any) -> PlacementPool:
    document = inventory(app("shop"), hosts=[kind(count=0)])
    pool = made(ledger, clock, document, fleet="web", set_aside_cores=1, shadow=None, **more)
    pool.follow(VMS, (), epoch=1)
    return pool


def states(pool: PlacementPool) -> dict[str, HostState]:
    return {one.name: one.state for one in pool.hosts()}


def turned(pool: PlacementPool, clock: VirtualClock, **leaving: int) -> set[str]:
    """Turn once while groups of the fleet have VMs too many; return the hosts that drain."""
    listing: Any = Listing(LISTED)
    turn(turns_of(pool, listing, Capacity(leaving=leaving), l="web-l"), clock)
    return {name for name, state in states(pool).items() if state is HostState.DRAINING}


def test_empty_hosts_drain_while_the_fleet_shrinks_and_take_containers_again(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = pool_of(ledger, clock)
    (placed,) = pool.request(ask("r1")).containers
    empty = {"i-1", "i-2", "i-3"} - {placed.host}
    assert turned(pool, clock) == set()
    assert turned(pool, clock, l=1) == {max(empty)}
    assert turned(pool, clock, l=3) == empty
    assert pool.retained() == {placed.host}
    assert turned(pool, clock) == set()
    assert pool.retained() == set(VMS)


def test_a_host_with_containers_is_retained_however_many_vms_leave(ledger: Ledger, clock: VirtualClock) -> None:
    pool = pool_of(ledger, clock)
    for k in range(6):
        pool.request(ask(f"r{k}"))
        pool.confirm(f"r{k}")
    busy = {one.name for one in pool.hosts() if one.containers}
    assert busy == set(VMS)
    turned(pool, clock, l=9)
    pool.drain("i-2")
    assert pool.retained() == set(VMS)
    for k in range(6):
        pool.release(f"r{k}")
    assert pool.retained() == {"i-1", "i-3"}


def test_a_pool_that_only_observes_drains_nothing(ledger: Ledger, clock: VirtualClock) -> None:
    assert turned(pool_of(ledger, clock, mode=Mode.OBSERVE), clock, l=3) == set()


def test_hosts_drain_only_in_the_group_that_shrinks(ledger: Ledger, clock: VirtualClock) -> None:
    """A host of another group would be kept from containers in vain: its VM does not go."""
    pool = pool_of(ledger, clock)
    pool.request(ask("r1"))
    assert turned(pool, clock, s=2) == set()
    cluster, _, _ = pool.snapshot()
    small = replace(VMS["i-3"], label="s")
    mixed, known = FleetVms({**VMS, "i-3": small}, set(VMS)), {**pool.host_records(), "i-3": small}
    found = {number: to_drain(cluster, mixed, known, Capacity(leaving={"l": number})) for number in range(4)}
    assert found == {0: set(), 1: {"i-2"}, 2: {"i-2"}, 3: {"i-2"}}
    assert to_drain(cluster, mixed, known, Capacity(leaving={"l": 1, "s": 1})) == {"i-2", "i-3"}


def test_an_empty_vm_that_may_not_go_takes_containers_and_another_one_drains(
    ledger: Ledger, clock: VirtualClock
) -> None:
    """It would drain for ever, and the group would not shrink."""
    pool = pool_of(ledger, clock)
    assert turned(pool, clock, l=1) == {"i-3"}
    listing: Any = Listing(LISTED)
    turn(turns_of(pool, listing, Capacity(leaving={"l": 1}, kept=("i-3",)), l="web-l"), clock)
    assert {name for name, state in states(pool).items() if state is HostState.DRAINING} == {"i-2"}
    assert pool.retained() == {"i-1", "i-3"}


def test_containers_that_fit_nowhere_else_go_to_a_host_that_drains_for_the_fleet(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = pool_of(ledger, clock, behind=Capacity())
    pool.request(ask("r1", count=2))
    assert turned(pool, clock, l=2) == {"i-2", "i-3"}
    assert pool.request(ask("r2", count=10)).reason is Reason.NO_HOST
    assert pool.capacity_for("shop").containers == 4
    assert pool.what_if([ask("w", count=4)]).requests[0].unplaced == 0
    assert pool.retained() == {"i-1"}
    pool.follow({}, (), epoch=1)
    assert [one.host for one in pool.request(ask("r3", count=3)).containers] == ["i-2", "i-2", "i-3"]
    assert states(pool) == dict.fromkeys(VMS, HostState.UP)
    assert pool.retained() == set(VMS)
    again = made(ledger, clock, fleet="web")
    assert states(again) == states(pool)


def test_a_request_that_fits_leaves_the_hosts_that_drain_alone(ledger: Ledger, clock: VirtualClock) -> None:
    pool = pool_of(ledger, clock, behind=Capacity(), policy="wf")
    pool.request(ask("r1"))
    assert turned(pool, clock, l=2) == {"i-2", "i-3"}
    assert [one.host for one in pool.request(ask("r2")).containers] == ["i-1"]
    assert pool.request(ask("r3", count=5)).reason is Reason.NO_HOST
    assert states(pool)["i-2"] is HostState.DRAINING
    assert pool.request(ask("r4", count=5, partial=True)).unplaced == 1
    assert states(pool) == dict.fromkeys(VMS, HostState.UP)


@pytest.mark.parametrize(
    ("fleet", "leads"), [(Capacity(victims=("i-2", "i-3")), True), (None, True), (Capacity(), False)]
)
def test_a_host_whose_vm_a_call_may_be_removing_takes_no_containers(
    ledger: Ledger, clock: VirtualClock, fleet: Capacity | None, leads: bool
) -> None:
    pool = pool_of(ledger, clock, behind=fleet)
    pool.leads = lambda: leads
    pool.request(ask("r1", count=2))
    assert turned(pool, clock, l=2) == {"i-2", "i-3"}
    assert pool.request(ask("r2")).infeasible == {"disk": 1, "drained": 2}
    assert pool.capacity_for("shop").containers == 0
    assert pool.request(ask("r3", partial=True)).unplaced == 1


def test_a_vm_that_was_said_to_be_free_takes_no_containers_until_the_fleet_is_read_again(
    ledger: Ledger, clock: VirtualClock
) -> None:
    """Between the answer and the next reading its termination may have been sent, and its scale-in be closed."""
    pool = pool_of(ledger, clock, behind=Capacity())
    pool.request(ask("r1", count=2))
    turned(pool, clock, l=2)
    assert pool.retained() == {"i-1"}
    assert pool.request(ask("r2")).reason is Reason.NO_HOST
    turned(pool, clock, l=2)
    assert [one.host for one in pool.request(ask("r3")).containers] == ["i-2"]


def test_containers_of_a_failed_host_go_to_a_host_that_drains_for_the_fleet(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = pool_of(ledger, clock, behind=Capacity())
    pool.request(ask("r1", count=2))
    turned(pool, clock, l=2)
    assert [move.host for move in pool.fail("i-1").moves] == ["i-2", "i-2"]
    assert states(pool) == {"i-1": HostState.FAILED, "i-2": HostState.UP, "i-3": HostState.DRAINING}
    assert states(made(ledger, clock, fleet="web")) == states(pool)


def test_hosts_that_an_operator_or_aws_drained_stay_so_where_nothing_else_fits(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = pool_of(ledger, clock, behind=Capacity())
    pool.request(ask("r1", count=2))
    turned(pool, clock, l=2)
    pool.drain("i-3")
    listing: Any = Listing(FleetVms({**VMS, "i-2": replace(VMS["i-2"], state=HostState.DRAINING)}, set(VMS)))
    turn(turns_of(pool, listing, Capacity(leaving={"l": 2}), l="web-l"), clock)
    assert pool.request(ask("r2")).infeasible == {"disk": 1, "drained": 2}


def test_hosts_that_an_operator_drained_or_aws_takes_out_are_left_as_they_are(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = pool_of(ledger, clock)
    pool.drain("i-3")
    cluster, _, _ = pool.snapshot()
    leaving = FleetVms({**VMS, "i-2": replace(VMS["i-2"], state=HostState.DRAINING)}, set(VMS))
    drain = to_drain(cluster, leaving, pool.host_records(), Capacity(leaving={"l": 9}))
    assert drain == {"i-1"}
    changed, _ = merged(leaving, pool.host_records(), drain)
    assert {name: one.state for name, one in changed.items()} == dict.fromkeys(("i-1", "i-2"), HostState.DRAINING)
    assert not pool.host_records()["i-1"].ordered


def test_a_host_that_an_operator_resumed_drains_like_any_other(ledger: Ledger, clock: VirtualClock) -> None:
    """Else it would be retained, and the fleet could not remove its VM again."""
    pool = pool_of(ledger, clock)
    assert turned(pool, clock, l=1) == {"i-3"}
    pool.resume("i-3")
    assert not pool.host_records()["i-3"].ordered
    assert turned(pool, clock, l=1) == {"i-3"}
    assert pool.retained() == {"i-1", "i-2"}
    assert turned(pool, clock) == set()


def test_a_host_that_an_operator_drains_while_the_fleet_shrinks_stays_drained(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = pool_of(ledger, clock)
    assert turned(pool, clock, l=1) == {"i-3"}
    assert not pool.drain("i-3").already
    assert pool.drain("i-3").already
    assert turned(pool, clock) == {"i-3"}


def test_a_host_that_an_operator_resumed_in_an_earlier_version_drains_and_comes_back(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = pool_of(ledger, clock)
    pool.follow({"i-3": replace(VMS["i-3"], ordered=True)}, (), epoch=1)
    standby = FleetVms({name: VMS[name] for name in ("i-1", "i-2")}, set(VMS))
    assert not merged(standby, pool.host_records())[0]["i-3"].held
    assert turned(pool, clock, l=1) == {"i-3"}
    assert turned(pool, clock) == set()


@pytest.mark.parametrize(("fleet", "mode", "kept"), [("web", "act", 3), ("batch", "act", 0), ("web", "observe", 0)])
def test_the_vms_of_a_pool_that_acts_are_retained_in_its_fleet(
    ledger: Ledger, clock: VirtualClock, fleet: str, mode: str, kept: int
) -> None:
    part: Any = object.__new__(PlacementPart)
    part.__dict__["pools"] = {"main": pool_of(ledger, clock, mode=Mode(mode))}
    assert len(part.retained(fleet)) == kept


def test_a_fleet_that_shrinks_gets_back_only_vms_that_the_pool_has_emptied(ledger: Ledger) -> None:
    clock = VirtualClock(T0)
    pool = pool_of(ledger, clock, policy="oldest")
    settings = AggregationSettings(needed=("cpu",))
    scene = Scene(settings=settings, store=SeriesStore(watched=[FLEET_OF_TWO]))
    scene.aggregator = Aggregator(scene.store, lambda fleet: pool.retained())
    scene.place("s", running("s-1"))
    scene.place("l", *(running(vm) for vm in VMS), drain_hook=DrainHook("drain", 300.0, 7200.0))
    part: Any = object.__new__(AutoscalingPart)
    part.host = SimpleNamespace(clock=clock)
    victims: list[tuple[str, ...]] = []

    def minute(wanted: int) -> set[str]:
        """Let a minute pass in which the policy wants so many large VMs; return the hosts that drain after it."""
        clock.advance(60.0)
        scene.store.append_samples(list(FleetDemand(pool, "web", signal=False).collect(clock.now())), clock.now())
        for key, vm in (("s", "s-1"), *(("l", vm) for vm in VMS)):
            own = {"busy_cores": 1.0} if key == "s" else {}
            scene.report(key, vm, (scene.now + 10.0 * k for k in range(1, 7)), cpu_percent=5.0, ram_percent=5.0, **own)
        snapshot = scene.minute()
        context = RailContext(
            clock.now(), FLEET_OF_TWO, snapshot, scene.state, Controls(), RailLimits(), Mode.ACT, True
        )
        result = decided(context, 1, wanted)
        scene.state = result.state
        victims.extend(one.victims for one in result.decision.intents)
        pairs = list(zip(FLEET_OF_TWO.groups, snapshot.groups, strict=True))
        leaving = part._leaving(result.decision, clock.now(), pairs)
        listing: Any = Listing(LISTED)
        turn(turns_of(pool, listing, Capacity(leaving=leaving), l="web-l"), clock)
        return {name for name, state in states(pool).items() if state is HostState.DRAINING}

    pool.request(ask("r1"))
    pool.confirm("r1")
    for _ in range(3):
        assert minute(3) == set()
    for _ in range(12):
        drained = minute(0)
        # However few VMs the policy wants, the one with a container takes and keeps containers.
        assert drained <= {"i-2", "i-3"}
        if victims:
            break
    assert victims == [("i-3", "i-2")]
    assert drained == {"i-2", "i-3"}
    assert [one.host for one in pool.request(ask("r2")).containers] == ["i-1"]
