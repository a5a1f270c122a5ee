"""Hosts come, drain, shrink, fail and leave: what runs is placed anew or stays, and no rule is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent.ledger import Ledger
from agent.placement.fleet import FleetVms, capacity_of, merged
from agent.placement.records import HostRecord, HostState, MoveDecision, Origin
from agent.placement.settings import PlacementSettings
from agent.placement.state import Change
from collectors.tagged_groups import VmSize
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.errors import BadInput, StateConflict, UnknownName
from domain.rules.placement.cluster import Choice, Scored
from tests.agent.placement.hosts import app, ask, held, host, inventory, kind, made


class TestAHost:
    def test_that_joins_takes_containers(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind(count=0)]))
        assert pool.request(ask("r1")).reason is Reason.NO_HOST
        pool.join(host("extra", rack="r1", label="gpu"))
        assert [one.host for one in pool.request(ask("r2")).containers] == ["extra"]
        assert made(ledger, clock).hosts() == pool.hosts()

    def test_that_joins_twice_is_there_once(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        assert not pool.join(host("extra")).already
        assert pool.join(host("extra")).already
        with pytest.raises(StateConflict, match="another host of this name"):
            pool.join(host("extra", 32))

    def test_that_drains_keeps_what_it_has(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1"))
        pool.drain("large-1")
        assert pool.drain("large-1").already
        assert [one.host for one in pool.request(ask("r2")).containers] == ["large-2"]
        assert held(pool)["r1"] == ["large-1"]
        pool.resume("large-1")
        assert [one.host for one in pool.request(ask("r3", count=2)).containers] == ["large-1", "large-1"]

    def test_that_shrinks_below_its_use_is_full(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1", count=2))
        pool.resize("large-1", (4, 64, 1600))
        (view, *_) = pool.hosts()
        assert (view.capacity, view.rated, view.violations) == ((4, 64, 1600), (16, 64, 1600), ("shop: cpu",))
        assert pool.view().figures.in_violation == 1
        assert [one.host for one in pool.request(ask("r2")).containers] == ["large-2"]
        pool.resize("large-1", (16, 64, 1600))
        assert pool.view().figures.in_violation == 0

    @pytest.mark.parametrize("capacity", [(0, 1, 1), (1, -1, 1), (1, 1, 2**31)])
    def test_of_a_size_that_is_none_is_refused(
        self, ledger: Ledger, clock: VirtualClock, capacity: tuple[int, int, int]
    ) -> None:
        pool = made(ledger, clock, inventory())
        with pytest.raises(BadInput, match="whole number from 1"):
            pool.resize("large-1", capacity)

    def test_of_an_unknown_name_is_refused(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        for order in (pool.drain, pool.resume, pool.fail):
            with pytest.raises(UnknownName, match="no host of this name"):
                order("nothing")


class TestAHostThatFails:
    def test_has_its_containers_placed_anew(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", limit=2), app("mail")))
        pool.request(ask("r1", count=3))
        pool.confirm("r1")
        pool.request(ask("r2", "mail"))
        moves = pool.fail("large-1").moves
        assert [(one.request_id, one.index, one.host) for one in moves] == [
            ("r1", 0, "large-2"),
            ("r1", 1, "large-3"),
            ("r2", 0, "large-2"),
        ]
        assert held(pool) == {"r1": ["large-2", "large-3", "large-2"], "r2": ["large-2"]}
        (decision, *_) = pool.store.newest("main", 1)
        assert isinstance(decision, MoveDecision)
        assert (decision.host, decision.reason, decision.decision_id) == ("large-1", Reason.HOST_FAILED, "main-p3")
        assert pool.fail("large-1").already

    def test_has_them_placed_by_the_policy_that_decides(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), policy="wf")
        pool.request(ask("r1"))
        pool.switch("ff", "ada", "for a try")
        pool.fail("large-1")
        (decision, *_) = pool.store.newest("main", 1)
        assert isinstance(decision, MoveDecision)
        assert decision.policy == "FF"

    def test_has_them_placed_by_best_fit_where_the_policy_offers_a_host_that_cannot(
        self, ledger: Ledger, clock: VirtualClock
    ) -> None:
        def offers_the_failed(found: Scored) -> Choice | None:
            return Choice(int(np.argmax(found.cluster.failed)), 0.0, -1, 0.0, 1, False)

        pool = made(ledger, clock, inventory(), policy="wf", pick=offers_the_failed)
        pool.request(ask("r1", count=2))
        pool.alarms()
        assert [one.host for one in pool.fail("large-1").moves] == ["large-2", "large-2"]
        (replaced,) = [event for event in pool.alarms() if event.reason is Reason.POLICY_REPLACED]
        assert "WF offered large-1, which cannot: failed" in replaced.detail
        (decision, *_) = pool.store.newest("main", 1)
        assert isinstance(decision, MoveDecision)
        assert decision.policy == "BF"
        assert pool.view().head.replaced == 2

    def test_loses_what_finds_no_other_host(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind(count=2)]))
        pool.request(ask("r1", count=6))
        pool.confirm("r1")
        assert [one.host for one in pool.fail("large-1").moves] == ["large-2", "large-2", None, None]
        (one,) = pool.reservations()
        assert (one.lost, one.moved) == ((2, 3), (0, 1))
        with pytest.raises(StateConflict, match="its host failed"):
            pool.release("r1", [2])
        assert Reason.CONTAINERS_LOST in {event.reason for event in pool.alarms()}
        again = made(ledger, clock)
        assert (again.reservations(), again.hosts()) == (pool.reservations(), pool.hosts())

    def test_comes_back_when_it_joins_again(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind(count=1)]))
        pool.fail("large")
        assert pool.request(ask("r1")).infeasible == {"failed": 1}
        with pytest.raises(StateConflict, match="let it join again"):
            pool.drain("large")
        pool.join(host("large"))
        assert [one.host for one in pool.request(ask("r2")).containers] == ["large"]
        assert made(ledger, clock).hosts() == pool.hosts()


def test_what_the_inventory_says_runs_is_there_when_its_host_joins_again(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, inventory(snapshot=[{"host_type": "large", "instances": {"shop": 3}}]))
    pool.fail("large-1")
    restarted = made(ledger, clock)
    for one in (pool, restarted):
        one.join(host("large-1"))
        assert [view.containers for view in one.hosts()] == [3, 0, 0, 0]
    assert made(ledger, clock).hosts() == pool.hosts()


class TestAnInventoryThatChanges:
    """What a file says of a host holds from then on, and no file leaves a pool that cannot be read any more."""

    @pytest.mark.parametrize(
        ("document", "words"),
        [
            (inventory(hosts=[kind(), kind("large-1", count=1)]), "another type of hosts gives a host this name"),
            (inventory(hosts=[kind(count=None), kind("large-7", count=1)]), "another type of hosts gives"),
            (inventory(snapshot=[{"host_type": "large", "instances": {"shop": 1}}] * 5), "it holds more hosts"),
        ],
    )
    def test_is_refused_where_its_hosts_cannot_be(
        self, ledger: Ledger, clock: VirtualClock, document: dict[str, Any], words: str
    ) -> None:
        pool = made(ledger, clock, inventory())
        with pytest.raises(BadInput, match=words):
            pool.adopt(document, "other", epoch=1)
        assert len(made(ledger, clock).hosts()) == 4
        assert pool.adopt(inventory(hosts=[kind("small")]), "another", epoch=1)

    def test_to_a_type_whose_name_begins_another_has_its_hosts_drain(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind("a-b")]))
        pool.request(ask("r1"))
        pool.adopt(inventory(hosts=[kind("a", count=None)]), "other", epoch=1)
        for there in (pool, made(ledger, clock)):
            assert {one.name: one.state for one in there.hosts()} == {
                "a-1": HostState.UP,
                "a-b-1": HostState.DRAINING,
            }

    def test_in_size_and_label_changes_hosts_that_have_a_record(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.drain("large-1")
        pool.resume("large-1")
        pool.resize("large-2", (4, 16, 100))
        pool.drain("large-3")
        pool.adopt(inventory(hosts=[kind(cores=8, label="gpu")]), "smaller", epoch=1)
        for there in (pool, made(ledger, clock)):
            assert {one.capacity for one in there.hosts()} == {(8, 32, 800)}
            assert {one.label for one in there.hosts()} == {"gpu"}
        assert [one.state for one in pool.hosts()] == ["up", "up", "draining", "up"]

    def test_elsewhere_leaves_an_ordered_capacity(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.resize("large-2", (4, 16, 100))
        pool.adopt(inventory(app("shop")), "other", epoch=1)
        assert [one.capacity[0] for one in pool.hosts()] == [16, 4, 16, 16]

    def test_opens_a_host_that_it_lists_again_under_its_new_size(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        pool.request(ask("r1", count=5))
        pool.drain("large-2")
        pool.adopt(inventory(hosts=[kind("other")]), "without", epoch=1)
        pool.adopt(inventory(hosts=[kind(cores=8)]), "again", epoch=1)
        for there in (pool, made(ledger, clock)):
            assert [(one.name, one.state, one.capacity[0]) for one in there.hosts()] == [
                ("large-1", "up", 8),
                # Drained by order.
                ("large-2", "draining", 8),
                ("large-3", "up", 8),
                ("large-4", "up", 8),
            ]


def test_a_host_that_joins_again_keeps_its_rack_and_label_over_a_start(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(
        ledger,
        clock,
        inventory(
            app("shop", rack_limit=1), app("gpu", label="gpu"), hosts=[kind(), kind("other", count=0, label="gpu")]
        ),
    )
    for name in ("large-1", "large-2"):
        pool.fail(name)
        pool.join(host(name, rack="r1", label="gpu"))
    again = made(ledger, clock)
    assert again.hosts() == pool.hosts()
    assert again.request(ask("r1", "gpu", count=8)).reason is Reason.PLACED
    assert again.request(ask("r2", count=4, partial=True)).unplaced == 2


class TestAHostOfATypeWithoutBound:
    def test_stays_drained_or_failed_over_turns(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind(count=None)]))
        pool.request(ask("r1", count=9))
        pool.cancel("r1")
        pool.drain("large-2")
        pool.fail("large-3")
        pool.lapse(epoch=1)
        for there in (pool, made(ledger, clock)):
            states = {one.name: one.state for one in there.hosts()}
            assert (states["large-2"], states["large-3"]) == (HostState.DRAINING, HostState.FAILED)

    def test_does_not_stand_in_the_way_of_one_that_joined_under_its_name(
        self, ledger: Ledger, clock: VirtualClock
    ) -> None:
        pool = made(ledger, clock, inventory(hosts=[kind(count=None)]))
        pool.join(host("large-2", 32))
        assert pool.request(ask("r1", count=16)).reason is Reason.PLACED
        assert made(ledger, clock).view().figures == pool.view().figures


def listed(*hosts: HostRecord, others: tuple[str, ...] = ()) -> FleetVms:
    """Return what AWS lists: hosts, and VMs that are there and no hosts."""
    return FleetVms({host.name: host for host in hosts}, {*(host.name for host in hosts), *others})


class TestAFleet:
    UP = HostRecord("i-1", (2, 7, 100), Origin.FLEET, HostState.UP, "us-east-1a", "s", (2, 7, 100), "m5a.large")

    def test_gives_hosts_of_the_size_of_its_types(self) -> None:
        settings = PlacementSettings(vm_disk_gb=50, set_aside_cores=1, set_aside_memory_gib=2)
        assert capacity_of(VmSize(4, 15.8), settings) == (3, 13, 50)
        assert capacity_of(VmSize(1, 15.8), settings) is None
        assert capacity_of(VmSize(4, 2.0), settings) is None
        assert capacity_of(None, settings) is None

    def test_that_is_as_it_was_changes_nothing(self) -> None:
        assert merged(listed(self.UP), {"i-1": self.UP}) == ({}, ())

    def test_has_a_vm_that_terminates_drained_and_one_that_is_gone_fail(self) -> None:
        leaving = replace(self.UP, state=HostState.DRAINING)
        assert merged(listed(leaving), {"i-1": self.UP}) == ({"i-1": leaving}, ())
        assert merged(listed(), {"i-1": self.UP, "mine": host("mine")}) == ({}, ("i-1",))

    def test_keeps_a_vm_that_is_listed_and_not_in_service_and_opens_it_again(self) -> None:
        waiting = replace(self.UP, state=HostState.DRAINING)
        assert merged(listed(others=("i-1",)), {"i-1": self.UP}) == ({"i-1": waiting}, ())
        assert merged(listed(others=("i-1",)), {"i-1": waiting}) == ({}, ())
        assert merged(listed(self.UP), {"i-1": waiting}) == ({"i-1": self.UP}, ())

    def test_leaves_failed_what_an_operator_said_has_failed(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", 1), hosts=[kind(count=0)]))
        pool.follow({"i-1": self.UP}, (), epoch=1)
        pool.fail("i-1")
        assert merged(listed(self.UP), pool.host_records()) == ({}, ())
        assert merged(listed(replace(self.UP, state=HostState.DRAINING)), pool.host_records()) == ({}, ())
        pool.join(host("i-1", 2))
        pool.fail("i-1")
        # AWS does not list it any more: nothing of it is kept.
        pool.follow(*merged(listed(), pool.host_records()), epoch=1)
        assert made(ledger, clock).hosts() == pool.hosts() == []

    def test_leaves_what_an_operator_ordered(self) -> None:

        drained = replace(self.UP, state=HostState.DRAINING, ordered=True)
        smaller = replace(self.UP, capacity=(1, 7, 100))
        assert merged(listed(self.UP), {"i-1": drained}) == ({}, ())
        assert merged(listed(self.UP), {"i-1": smaller}) == ({}, ())

    def test_that_has_a_vm_in_another_group_gives_it_that_label(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", 1, label="t"), hosts=[kind(count=0, label="t")]))
        pool.follow({"i-1": self.UP}, (), epoch=1)
        pool.follow({"i-1": replace(self.UP, label="t", rack="us-east-1b")}, (), epoch=1)
        assert made(ledger, clock).hosts() == pool.hosts()
        assert pool.request(ask("r1")).reason is Reason.PLACED

    def test_does_not_undo_what_an_operator_ordered_while_aws_was_read(
        self, ledger: Ledger, clock: VirtualClock
    ) -> None:
        pool = made(ledger, clock, inventory(app("shop", 1), hosts=[kind(count=0)]))
        pool.follow({"i-1": self.UP, "i-2": replace(self.UP, name="i-2")}, (), epoch=1)
        known = dict(pool.host_records())
        changed, gone = merged(listed(*(replace(known[name], rack="us-east-1b") for name in ("i-1", "i-2"))), known)
        pool.drain("i-1")
        pool.follow(changed, gone, 1, known)
        hosts = pool.host_records()
        assert (hosts["i-1"].state, hosts["i-1"].rack) == (HostState.DRAINING, "us-east-1a")
        assert hosts["i-2"].rack == "us-east-1b"

    def test_that_loses_a_vm_has_its_containers_placed_anew(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", 1), hosts=[kind(count=0)]))
        pool.follow({"i-1": self.UP, "i-2": replace(self.UP, name="i-2")}, (), epoch=1)
        pool.request(ask("r1", count=2))
        (move, _) = pool.follow({}, ["i-1"], epoch=1)
        assert (move.before, move.host) == ("i-1", "i-2")
        assert [one.name for one in pool.hosts()] == ["i-2"]
        assert [one.name for one in made(ledger, clock).hosts()] == ["i-2"]


def test_what_the_inventory_says_runs_takes_room(ledger: Ledger, clock: VirtualClock) -> None:
    runs = [{"host_type": "large", "instances": {"shop": 3}}, {"host_type": "large", "instances": {"mail": 1}}]
    pool = made(ledger, clock, inventory(snapshot=runs))
    assert [one.containers for one in pool.hosts()] == [3, 1, 0, 0]
    assert [one.host for one in pool.request(ask("r1", count=2)).containers] == ["large-1", "large-2"]


def test_hosts_of_reservations_without_openings_stay_the_oldest(ledger: Ledger, clock: VirtualClock) -> None:
    """A release before this one did not record openings."""
    pool = made(ledger, clock, inventory(), policy="oldest")
    for name in ("z1", "z2"):
        pool.request(ask(name, count=4))
    state = pool.store.read("main")
    before = {name: replace(one, openings={}) for name, one in state.reservations.items()}
    pool.store.write("main", state.stored, state.head, Change(reservations=before))
    for name in ("a3", "a4"):
        made(ledger, clock, policy="oldest").request(ask(name, count=4))
    orders = []
    for _ in range(2):
        cluster, *_ = made(ledger, clock, policy="oldest").snapshot()
        opened = [(int(number), cluster.hosts[host].name) for host, number in enumerate(cluster.opening) if number]
        orders.append([name for _, name in sorted(opened)])
    assert orders == [["large-1", "large-2", "large-3", "large-4"]] * 2
