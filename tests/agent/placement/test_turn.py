"""What the agent that leads does for a pool each turn: the shadow, its daily estimate, alarms, and a fleet's VMs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.alarms.book import AlarmBook
from agent.kernel.decision import Capacity
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger
from agent.placement.fleet import FleetHosts, FleetVms
from agent.placement.records import Comparison, HostState, Origin
from agent.placement.reserve import PlacementPool
from agent.placement.turn import PoolTurns, check_inventory, mix_distance
from agent.placement.view import pool_card, request_lines
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.errors import BadInput
from domain.rules.placement.instance import Application, parse_instance
from domain.rules.placement.mix import mix_of_instances
from domain.rules.placement.policies import WF, Training, policy_document
from domain.units import DAY_S, HOUR_S
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread
from tests.agent.placement.hosts import app, ask, held, host, inventory, kind, made
from tests.simulator.aws.world import START as CLOUD_START
from tests.simulator.aws.world import World
from trainer.promotion.directory import ModelsWriter

NO_MODELS = ModelsWriter(Path("/nonexistent"), None)


def turns_of(
    pool: PlacementPool, fleet: FleetHosts | None = None, capacity: Capacity | None = None, **groups: str
) -> PoolTurns:
    return PoolTurns(pool, NO_MODELS, fleet, lambda: groups, lambda: capacity)


def turn(turns: PoolTurns, clock: VirtualClock, pass_s: float = 0.0) -> list[Reason]:
    """Let time pass and turn once; return the reasons of what is an alarm now."""
    clock.advance(pass_s)
    return [event.reason for event in turns.turn(clock.now(), clock.monotonic(), epoch=1)]


class TestTheShadow:
    def test_says_once_a_day_how_many_hosts_it_would_have_saved(self, ledger: Ledger, clock: VirtualClock) -> None:
        document = inventory(app("small", 4), app("large", 12), hosts=[kind(count=20)])
        pool = made(ledger, clock, document, policy="wf", shadow="bf", gap_alarm=1.0)
        turns = turns_of(pool)
        turn(turns, clock)
        # Worst fit keeps one small container on each of two open hosts; best fit stacks them.
        for n, name in enumerate(["large", "large", "small", "small", "large"]):
            pool.request(ask(f"r{n}", name))
            pool.confirm(f"r{n}")
            turn(turns, clock)
        assert turns.shadow is not None
        for _ in range(24):
            turn(turns, clock, HOUR_S)
        (comparison, *_) = pool.store.newest("main", 1)
        assert isinstance(comparison, Comparison)
        assert (comparison.policy, comparison.shadow, comparison.requests) == ("WF", "BF", 5)
        assert comparison.saved == comparison.open_hosts - comparison.shadow_hosts
        assert "hosts open, BF would have had" in comparison.detail
        assert comparison.decision_id == "main-p6"
        assert [entry.reason for entry in ledger.journal()].count(Reason.HOSTS_COMPARED) == 1

    def test_sees_the_pool_at_one_moment_while_others_request(
        self, ledger: Ledger, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pool, other = (made(ledger, clock, inventory(app("shop", limit=1)), policy="wf", shadow="bf") for _ in range(2))
        turns = turns_of(pool)
        plain = pool.snapshot

        def then_another_requests(request_id: str) -> None:
            def snapshot() -> Any:
                found = plain()
                other.request(ask(request_id, count=2))
                other.confirm(request_id)
                return found

            monkeypatch.setattr(pool, "snapshot", snapshot)

        then_another_requests("r1")
        turn(turns, clock)
        then_another_requests("r2")
        turn(turns, clock)
        monkeypatch.undo()
        assert turns.shadow is not None
        assert turns.shadow.requests == 1, "r1, which came after the first look; r2 is seen in the next turn"
        other.release("r1")
        other.fail("large-1")
        assert turn(turns, clock) == []
        assert (pool.problem, turns.shadow.requests) == ("", 2)

    def test_that_fails_costs_the_turn_nothing_and_begins_anew(
        self, ledger: Ledger, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pool = made(ledger, clock, inventory(), shadow="wf", gap_alarm_hours=1)
        turns = turns_of(pool)
        pool.request(ask("r1", count=5))
        pool.confirm("r1")
        pool.release("r1", [0, 1, 2])
        assert turns.shadow is not None
        with monkeypatch.context() as patch:
            patch.setattr(turns.shadow._chooser, "place", lambda *about, **more: 1 / 0)
            turn(turns, clock)
            pool.request(ask("r2"))
            pool.confirm("r2")
            assert turn(turns, clock, HOUR_S + 1.0) == [Reason.PLACEMENT_GAP]
            assert "ZeroDivisionError" in pool.problem
            assert Reason.INVENTORY_REFUSED not in {entry.reason for entry in ledger.journal()}
        turn(turns, clock)
        assert pool.problem == ""
        pool.request(ask("r3"))
        turn(turns, clock)
        assert turns.shadow.requests == 1, "since it began anew"

    def test_follows_hosts_that_come_drain_and_fail(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", limit=1)), policy="wf")
        turns = turns_of(pool)
        pool.request(ask("r1", count=4))
        turn(turns, clock)
        pool.join(host("extra"))
        pool.fail("large-1")
        turn(turns, clock)
        assert turns.shadow is not None
        cluster = turns.shadow._cluster
        assert cluster is not None
        assert cluster.open_hosts == 4
        assert cluster.containers_on(cluster.host("extra"))
        pool.drain("large-2")
        pool.cancel("r1")
        turn(turns, clock)
        assert cluster.open_hosts == 0
        assert cluster.drained[cluster.host("large-2")]

    def test_follows_a_host_into_another_rack(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory())
        turns = turns_of(pool)
        turn(turns, clock)
        pool.fail("large-1")
        turn(turns, clock)
        pool.join(host("large-1", rack="r1", label="gpu"))
        turn(turns, clock)
        pool.follow({"large-1": replace(pool.host_records()["large-1"], rack="r2")}, (), epoch=1)
        turn(turns, clock)
        assert turns.shadow is not None
        assert turns.shadow._cluster is not None
        assert turns.shadow._cluster.hosts == pool.snapshot()[0].hosts


class TestAlarms:
    def test_a_gap_that_lasts_a_day(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), shadow=None)
        turns = turns_of(pool)
        pool.request(ask("r1", count=5))
        pool.confirm("r1")
        assert turn(turns, clock) == []
        pool.release("r1", [0, 1])
        pool.release("r1", [2])
        assert pool.view().figures.gap == 1.0
        assert turn(turns, clock) == []
        assert turn(turns, clock, 23.9 * HOUR_S) == []
        assert turn(turns, clock, 0.2 * HOUR_S) == [Reason.PLACEMENT_GAP]
        assert turn(turns, clock, 60.0) == [Reason.PLACEMENT_GAP]
        assert [entry.reason for entry in ledger.journal()].count(Reason.PLACEMENT_GAP) == 1
        pool.release("r1")
        assert turn(turns, clock, 60.0) == []

    def test_a_refusal_while_cores_are_free(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", limit=1), app("mail", 4)))
        pool.request(ask("r1", count=5))
        (event,) = [event for event in pool.alarms() if event.reason is Reason.PLACEMENT_REFUSING]
        assert "100% of the cores are free: limit" in event.detail
        pool.request(ask("r2", "mail", count=16))
        pool.request(ask("r3", "mail"))
        assert Reason.PLACEMENT_REFUSING not in {event.reason for event in pool.alarms()}

    def test_many_refusals_are_one_alarm(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool, book = made(ledger, clock, inventory(app("shop", limit=1))), AlarmBook()
        for n in range(20):
            pool.request(ask(f"r{n}", count=5))
        (sent,) = book.turn(TurnReport(clock.now(), events=pool.alarms()))
        assert sent.reason is Reason.PLACEMENT_REFUSING
        assert [entry.reason for entry in ledger.journal()].count(Reason.PLACEMENT_REFUSING) == 20

    def test_an_inventory_that_is_refused_is_an_alarm_until_it_is_followed(
        self, ledger: Ledger, clock: VirtualClock, tmp_path: Path
    ) -> None:
        file, book = tmp_path / "pool.json", AlarmBook()
        pool = made(ledger, clock, inventory_file=file)
        turns = turns_of(pool)

        def alarms(pass_s: float) -> list[tuple[Reason, bool]]:
            clock.advance(pass_s)
            events = (*turns.turn(clock.now(), clock.monotonic(), epoch=1), *pool.alarms())
            return [(one.reason, one.resolved) for one in book.turn(TurnReport(clock.now(), events=events))]

        assert alarms(60.0) == [(Reason.INVENTORY_REFUSED, False)]
        assert [alarms(300.0) for _ in range(10)] == [[]] * 10
        file.write_text(json.dumps(inventory()))
        assert [alarms(600.0) for _ in range(4)] == [[], [], [(Reason.INVENTORY_REFUSED, True)], []]
        assert [entry.reason for entry in ledger.journal()].count(Reason.INVENTORY_REFUSED) == 1

    def test_requests_that_are_no_longer_those_of_before(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(app("shop", 1), app("mail", 1), hosts=[kind(count=None)]), shadow=None)
        for n in range(60):
            pool.request(ask(f"a{n}", "shop" if n % 2 else "mail"))
        clock.advance(2 * DAY_S)
        for n in range(60):
            pool.request(ask(f"b{n}", "shop"))
        turns = turns_of(pool)
        assert turn(turns, clock, 60.0) == [Reason.PLACEMENT_DRIFTED]
        assert turns.drift == pytest.approx(0.5)
        assert mix_distance([], []) == 0.0

    def test_requests_and_hosts_that_the_policy_was_not_trained_on(
        self, ledger: Ledger, clock: VirtualClock, tmp_path: Path
    ) -> None:
        trained, _ = parse_instance(
            inventory(app("shop", 1, limit=1), app("mail", 2), hosts=[kind(count=4)])
            | {"requests": [{"id": "a", "application": "shop", "count": 3}, {"id": "b", "application": "mail"}]}
        )
        policy = replace(WF, name="mine", training=Training(mix=mix_of_instances([trained])))
        file = tmp_path / "mine.json"
        file.write_text(json.dumps(policy_document(policy)))
        document = inventory(app("shop", 1, limit=1), app("mail", 2), hosts=[kind(count=90), kind("big", 64, count=10)])
        pool = made(ledger, clock, document, shadow=None, policy=f"file:{file}")
        turns = turns_of(pool)
        # A tenth of the hosts is of another size, and of requests too few are known.
        assert turn(turns, clock, 60.0) == []
        assert pool.view().training_distance == {"hosts": pytest.approx(0.1)}
        for n in range(60):
            answer = pool.request(ask(f"r{n}", "mail", count=1 + n % 2))
        assert turn(turns, clock, HOUR_S) == [Reason.UNLIKE_TRAINING]
        # Training: 3 containers of 1 core to 1 of 2 cores; a request of three and one of one.
        assert pool.view().training_distance == {
            "demands": pytest.approx(0.75),
            "sizes": pytest.approx(0.0),
            "limits": pytest.approx(0.75),
            "hosts": pytest.approx(0.1),
        }
        assert answer.outside == ()
        many = pool.request(ask("many", "mail", count=12))
        assert many.outside == ("requests of containers: 10+",)
        assert any(line.endswith("requests of containers: 10+") for line in request_lines(many))
        assert ("distance from its training", "demands 0.75, sizes 0.00, limits 0.75, hosts 0.10") in pool_card(
            pool.view(), None, paused=False, curves={}
        ).rows
        assert turn(turns, clock, 60.0) == [Reason.UNLIKE_TRAINING]
        assert [entry.reason for entry in ledger.journal()].count(Reason.UNLIKE_TRAINING) == 1
        pool.switch("bf", "ada", "it knows none of this")
        assert turn(turns, clock, HOUR_S) == []
        assert pool.view().training_distance == {}


class TestAnInventoryFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "pool.json"
        path.write_text(json.dumps(inventory()))
        return path

    def test_that_comes_back_is_no_trouble_any_more(
        self, ledger: Ledger, clock: VirtualClock, file: Path, tmp_path: Path
    ) -> None:
        pool = made(ledger, clock, inventory_file=file)
        turns = turns_of(pool)
        turn(turns, clock)
        file.rename(tmp_path / "away.json")
        turn(turns, clock)
        assert "cannot be read" in pool.problem
        (tmp_path / "away.json").rename(file)
        turn(turns, clock)
        assert pool.problem == ""

    def test_has_no_part_in_a_fleets_trouble(self, ledger: Ledger, clock: VirtualClock, file: Path) -> None:
        pool = made(ledger, clock, inventory_file=file, fleet="web")
        troubles = ["trouble", "trouble", ""]
        turns = turns_of(pool)
        turns._follow_fleet = lambda epoch: troubles.pop(0)  # type: ignore[method-assign]
        found = []
        while troubles:
            turn(turns, clock)
            found.append(pool.problem)
        assert found == ["trouble", "trouble", ""]
        assert [entry.reason for entry in ledger.journal()].count(Reason.INVENTORY_REFUSED) == 1

    def test_is_followed_once_what_came_over_http_allows_it(
        self, ledger: Ledger, clock: VirtualClock, file: Path
    ) -> None:
        pool = made(ledger, clock, inventory_file=file)
        turns = turns_of(pool)
        turn(turns, clock)
        pool.put_application(Application("web", (1, 1, 1), excludes=frozenset({"mail"})))
        file.write_text(json.dumps(inventory(app("shop"))))
        turn(turns, clock)
        assert "excludes='mail': no application has this id" in pool.problem
        pool.put_application(Application("web", (1, 1, 1)))
        turn(turns, clock)
        assert pool.problem == ""
        assert [one.application for one in pool.applications()] == ["shop", "web"]

    def test_is_in_force_again_where_another_agent_followed_another(
        self, ledger: Ledger, clock: VirtualClock, file: Path
    ) -> None:
        pool = made(ledger, clock, inventory_file=file)
        turns = turns_of(pool)
        turn(turns, clock)
        made(ledger, clock, inventory(hosts=[kind("other")]))
        turn(turns, clock)
        assert [one.name for one in pool.hosts()] == [f"large-{n}" for n in range(1, 5)]

    def test_of_a_fleets_pool_needs_no_hosts_and_may_name_its_groups(
        self, ledger: Ledger, clock: VirtualClock, file: Path
    ) -> None:
        """Sizes and labels come from AWS: a group's key is the label of its VMs."""
        document = {"version": 1, "applications": [app("shop", label="workers")]}
        file.write_text(json.dumps(document))
        pool = made(ledger, clock, inventory_file=file, fleet="web")
        turn(turns_of(pool), clock)
        assert pool.problem == ""
        pool.follow({"i-1": replace(host("i-1", label="workers"), origin=Origin.FLEET)}, (), epoch=1)
        assert pool.request(ask("r1")).reason is Reason.PLACED
        assert "1 applications" in check_inventory(file, hosts_elsewhere=True)
        alone = made(ledger, clock, inventory_file=file, name="alone")
        turn(turns_of(alone), clock)
        assert "write a list with at least one entry" in alone.problem

    def test_that_could_be_no_pool_is_found_by_the_preflight(self, file: Path) -> None:
        file.write_text(json.dumps(inventory(hosts=[kind(), kind("large-2", count=1)])))
        with pytest.raises(BadInput, match="another type of hosts gives a host this name"):
            check_inventory(file)

    def test_keeps_in_the_ledger_what_a_pool_works_by(self, ledger: Ledger, clock: VirtualClock, file: Path) -> None:
        wide = {"comment": [10**30], "name": 10**30, "requests": [{"id": "r", "application": "shop"}]}
        file.write_text(json.dumps(inventory(snapshot=[]) | wide))
        pool = made(ledger, clock, inventory_file=file)
        turn(turns_of(pool), clock)
        assert pool.problem == ""
        document = pool.current().document
        assert document is not None
        assert set(document) == {"version", "host_types", "applications", "snapshot"}

    @pytest.mark.parametrize(
        "content", ['{"version": 1, "host_types": [', '{"version": 1, "comment": "\\ud800"}', "[]", ""]
    )
    def test_that_is_half_written_leaves_the_one_before_it(
        self, ledger: Ledger, clock: VirtualClock, file: Path, content: str
    ) -> None:
        pool = made(ledger, clock, inventory_file=file)
        turns = turns_of(pool)
        turn(turns, clock)
        file.write_text(content)
        turn(turns, clock)
        assert "keeping the previous one" in pool.problem
        assert len(pool.hosts()) == 4


class TestAFleet:
    @pytest.fixture
    def cloud(self) -> Iterator[World]:
        running = start_in_thread(VirtualClock(CLOUD_START), seed=7)
        world = World(running, CloudControl(running.endpoint))
        yield world
        world.close()

    @pytest.fixture
    def session(self, cloud: World, clock: VirtualClock) -> AwsSession:
        given: dict[str, Any] = {"read_timeout_s": 30.0, "access_key_id": "agent", "secret_access_key": "simulated"}
        return AwsSession(AwsOptions("us-east-1", cloud.running.endpoint, **given), clock, read_only=True)

    def test_s_vms_are_hosts_of_their_types_sizes(
        self, cloud: World, session: AwsSession, ledger: Ledger, clock: VirtualClock
    ) -> None:
        ids = sorted(cloud.ready_group("web"))
        pool = made(ledger, clock, inventory(app("shop", 1), hosts=[kind(count=0)]), fleet="web")
        turns = turns_of(pool, FleetHosts(session, pool.settings), workers="web")
        turn(turns, clock)
        # An m5a.large has 2 vCPUs and 8 GiB, of which one is kept free.
        assert [(one.name, one.capacity, one.rack, one.label) for one in pool.hosts()] == [
            (name, (2, 7, 100), "us-east-1a", "workers") for name in ids
        ]
        decision = pool.request(ask("r1", count=3))
        assert {one.host for one in decision.containers} == set(ids)
        written = pool.view().head.revision
        turn(turns, clock)
        assert pool.view().head.revision == written

    def test_does_not_undo_an_order_that_comes_while_aws_is_read(
        self, cloud: World, session: AwsSession, ledger: Ledger, clock: VirtualClock
    ) -> None:
        first, *_ = sorted(cloud.ready_group("web"))
        pool = made(ledger, clock, inventory(app("shop", 1), hosts=[kind(count=0)]), fleet="web")
        fleet = FleetHosts(session, pool.settings)
        turn(turns_of(pool, fleet, workers="web"), clock)

        class Slow(FleetHosts):
            """Reads the VMs with another label, and an operator resizes one of them meanwhile."""

            def read(self, groups: Mapping[str, str]) -> FleetVms:
                found = super().read({f"{key}-new": name for key, name in groups.items()})
                pool.resize(first, (1, 1, 1))
                return found

        slow = turns_of(pool, Slow(session, pool.settings), workers="web")
        turn(slow, clock)
        labels = {one.name: (one.label, one.capacity) for one in pool.hosts()}
        assert labels.pop(first) == ("workers", (1, 1, 1))
        assert {label for label, _ in labels.values()} == {"workers-new"}

    def test_a_vm_that_aws_terminates_has_its_containers_placed_anew(
        self, cloud: World, session: AwsSession, ledger: Ledger, clock: VirtualClock
    ) -> None:
        first, second = sorted(cloud.ready_group("web"))
        pool = made(ledger, clock, inventory(app("shop", 1), hosts=[kind(count=0)]), fleet="web")
        turns = turns_of(pool, FleetHosts(session, pool.settings), workers="web")
        turn(turns, clock)
        (placed,) = pool.request(ask("r1")).containers
        leaving, staying = (first, second) if placed.host == first else (second, first)
        cloud.groups.terminate_instance_in_auto_scaling_group(InstanceId=leaving, ShouldDecrementDesiredCapacity=True)
        turn(turns, clock)
        assert {one.name: one.state for one in pool.hosts()}[leaving] is HostState.DRAINING
        assert held(pool) == {"r1": [leaving]}
        cloud.control.advance(300.0)
        turn(turns, clock)
        assert [one.name for one in pool.hosts()] == [staying]
        assert held(pool) == {"r1": [staying]}

    def test_a_vm_that_goes_to_standby_and_back_keeps_its_containers(
        self, cloud: World, session: AwsSession, ledger: Ledger, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cloud.ready_group("web")
        pool = made(ledger, clock, inventory(app("shop", 1), hosts=[kind(count=0)]), fleet="web")
        turns = turns_of(pool, FleetHosts(session, pool.settings), workers="web")
        turn(turns, clock)
        (placed,) = pool.request(ask("r1")).containers
        pages, states = AwsSession.pages, []

        def in_state(own: AwsSession, *call: Any, **given: Any) -> Any:
            for page in pages(own, *call, **given):
                for group in page.get("AutoScalingGroups", ()):
                    for one in group["Instances"]:
                        if one["InstanceId"] == placed.host and states:
                            one["LifecycleState"] = states[-1]
                yield page

        monkeypatch.setattr(AwsSession, "pages", in_state)
        for state in ("EnteringStandby", "Standby", "Pending", "Pending:Wait", "Quarantined"):
            states.append(state)
            turn(turns, clock)
            assert (state, {one.name: one.state for one in pool.hosts()}[placed.host]) == (
                state,
                HostState.DRAINING,
            )
            assert held(pool) == {"r1": [placed.host]}
        states.append("InService")
        turn(turns, clock)
        assert {one.state for one in pool.hosts()} == {HostState.UP}
        assert held(pool) == {"r1": [placed.host]}

    def test_that_cannot_be_read_leaves_the_hosts_as_they_were(
        self, cloud: World, session: AwsSession, ledger: Ledger, clock: VirtualClock
    ) -> None:
        cloud.ready_group("web")
        pool = made(ledger, clock, inventory(app("shop", 1), hosts=[kind(count=0)]), fleet="web")
        turn(turns_of(pool, FleetHosts(session, pool.settings), workers="web"), clock)
        there = pool.hosts()
        assert len(there) == 2
        nowhere = AwsSession(
            AwsOptions("us-east-1", "http://127.0.0.1:9", connect_timeout_s=0.2, read_attempts=1, access_key_id="a",
                       secret_access_key="b"), clock, read_only=True,
        )  # fmt: skip
        turn(turns_of(pool, FleetHosts(nowhere, pool.settings), workers="web"), clock)
        assert pool.hosts() == there
        assert "cannot be read, its hosts are unchanged" in pool.problem

    def test_that_is_not_managed_says_so(self, session: AwsSession, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, inventory(), fleet="web")
        turn(turns_of(pool, FleetHosts(session, pool.settings)), clock)
        assert pool.problem.startswith("the fleet web is not managed")
