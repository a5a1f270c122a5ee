"""The gate as a part of the agent: turned after the fleets, by the leader, without taking anything from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.admission.decision import AdmissionPart
from agent.admission.gate.gate import Gate
from agent.admission.settings import ClusterSettings
from agent.autoscaling.decision import AutoscalingPart
from agent.kernel.decision import Host, Part, Turn
from agent.kernel.leads import Leads
from agent.kernel.turn import TurnReport
from agent.service import chores
from agent.service.assembly import Agent, AwsKeys, assembled, turned
from agent.settings import load_settings
from agent.view.board import ServiceBoard
from domain.clock import read_both
from domain.decisions import Event, Mode, Reason
from domain.errors import ConfigurationError, Fenced
from tests.agent.admission.gate.yard import CLUSTER, Yard

QUOTA = "L-1216C47A"


def environ(yard: Yard, directory: Path, **values: str) -> dict[str, str]:
    fleet = "TRIMTAB_FLEETS__web__GROUPS__small__"
    given = {
        "MODE": "act",
        "STATE_DIRECTORY": str(directory),
        "LISTENER__PORT": "0",
        "AWS__REGION": "us-east-1",
        "AWS__ENDPOINT_URL": yard.world.running.endpoint,
        "CLUSTERS__staging__CAPACITY_CORES": "1000",
        "CLUSTERS__staging__TAGGED_GROUPS": "true",
        "CLUSTERS__staging__QUOTA_CODE": QUOTA,
        "CLUSTERS__staging__POLICY": "zeroth",
        "CLUSTERS__staging__THRESHOLD_CORES": "1000",
        **values,
    }
    group = {"NAME": "web-s", "VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1"}
    sizes = {"MIN": "1", "MAX": "5"}
    return {f"TRIMTAB_{name}": value for name, value in given.items()} | {
        f"{fleet}{name}": value for name, value in {**group, **sizes}.items()
    }


@contextmanager
def agent_of(yard: Yard, directory: Path, **values: str) -> Iterator[Agent]:
    directory.mkdir(exist_ok=True)
    settings = load_settings(environ(yard, directory, **values))
    with assembled(settings, yard.clock, AwsKeys("agent", "simulated")) as agent:
        yield agent


def take_turns(yard: Yard, agent: Agent, minutes: int = 1) -> TurnReport:
    for _ in range(minutes):
        yard.world.control.advance(60.0)
        report = agent.turn()
    return report


@pytest.fixture
def fleet_yard(yard: Yard) -> Yard:
    yard.group("web-s", vms=1, vm_type="m5a.large", cluster="none")
    yard.world.control.set_quota(QUOTA, 16.0)
    return yard


def test_fleets_and_clusters_are_served_by_one_turn(fleet_yard: Yard, tmp_path: Path) -> None:
    fleet_yard.ask("batch-a", 4, cluster="staging")
    fleet_yard.ask("batch-b", 1, cluster="staging")
    with agent_of(fleet_yard, tmp_path / "state") as agent:
        report = take_turns(fleet_yard, agent)
        assert [decision.fleet for decision in agent.part(AutoscalingPart).minute.decisions] == ["web"]
        assert [(event.about, event.reason.value) for event in report.events if "batch" in event.about] == [
            ("batch-a", "admitted"),
            ("batch-a", "accepted"),
            ("batch-b", "rejected_feasibility"),
        ]
        assert agent.part(AdmissionPart).clusters["staging"].rules.capacity_cores == 16
        take_turns(fleet_yard, agent, 2)
    assert (fleet_yard.desired("batch-a"), fleet_yard.desired("batch-b")) == (4, 0)
    assert fleet_yard.answer("batch-b") == "refused:rejected_feasibility"


def test_a_cluster_alone_is_enough_to_act_on(fleet_yard: Yard, tmp_path: Path) -> None:
    fleet_yard.ask("batch-a", 4, cluster="staging")
    (tmp_path / "state").mkdir()
    alone = {k: v for k, v in environ(fleet_yard, tmp_path / "state").items() if "FLEETS" not in k}
    settings = load_settings(alone)
    with assembled(settings, fleet_yard.clock, AwsKeys("agent", "simulated")) as agent:
        take_turns(fleet_yard, agent)
        board = ServiceBoard(fleet_yard.clock.now())
        chores.check_itself(settings, agent, board)
        assert "fleets" not in board.read().problems
    assert fleet_yard.desired("batch-a") == 4


def test_without_tagged_groups_there_is_no_gate_and_no_call_for_it(fleet_yard: Yard, tmp_path: Path) -> None:
    fleet_yard.ask("batch-a", 4, cluster="staging")
    off: dict[str, Any] = {"CLUSTERS__staging__TAGGED_GROUPS": "false", "CLUSTERS__staging__QUOTA_CODE": ""}
    with agent_of(fleet_yard, tmp_path / "state", **off) as agent:
        assert agent.part(AdmissionPart).gate is None
        take_turns(fleet_yard, agent)
    assert fleet_yard.desired("batch-a") == 0
    assert fleet_yard.world.control.calls(access_key="agent", operation="GetServiceQuota") == []


def test_an_agent_that_lost_its_lead_lets_nobody_in(fleet_yard: Yard, tmp_path: Path) -> None:
    fleet_yard.ask("batch-a", 4, cluster="staging")
    with agent_of(fleet_yard, tmp_path / "state") as agent:
        agent.ledger.take_epoch("another", fleet_yard.clock.now())
        take_turns(fleet_yard, agent, 2)
        assert agent.part(AdmissionPart).clusters["staging"].newest() == ()
    assert (fleet_yard.desired("batch-a"), fleet_yard.mutations) == (0, [])


def turned_part(yard: Yard, report: TurnReport) -> TurnReport:
    """Let the gate take its turn as the part of an agent does."""

    class Fleets(Part):
        name = "fleets"

        def turn(self, turn: Turn) -> TurnReport:
            return report

    host = Host(yard.ledger, None, yard.clock)
    part = AdmissionPart(host)
    part.gate = yard.gate
    return turned([Fleets(host), part], read_both(yard.clock), Leads(every=yard.epoch))


def test_a_gate_that_fails_is_reported_and_the_fleets_decisions_stand(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> tuple[Event, ...]:
        raise AttributeError("a mistake of ours")

    monkeypatch.setattr(yard.gate, "turn", fail)
    report = turned_part(yard, TurnReport(yard.clock.now()))
    assert report.failure is None
    (event,) = report.events
    assert (event.reason, "AttributeError" in event.detail) == (Reason.INTERNAL_ERROR, True)


def test_a_cluster_whose_capacity_cannot_be_worked_with_is_reported_and_the_others_go_on(yard: Yard) -> None:
    yard.world.control.set_quota(QUOTA, 16.0)
    yard.ask("batch-a", 4)
    # Terms of a cluster that nobody serves: a mistake of ours, such as no setting can make.
    terms = {"nobody": ClusterSettings(capacity_cores=1, quota_code=QUOTA), CLUSTER: ClusterSettings(capacity_cores=1)}
    gate = Gate(yard.session, yard.ledger, {CLUSTER: yard.service}, terms, Mode.ACT, yard.clock)
    events = gate.turn(yard.clock.now(), Leads(every=yard.epoch))
    assert events[0].detail.startswith("nobody: capacity: ")
    assert "KeyError: 'nobody'" in events[0].detail
    assert yard.desired("batch-a") == 4


def test_a_turn_that_could_execute_nothing_does_not_reach_the_gate(yard: Yard) -> None:
    yard.ask("batch-a", 4)
    failed = TurnReport(yard.clock.now(), failure="the ledger cannot be used now")
    assert turned_part(yard, failed) is failed
    assert (yard.mutations, yard.decisions()) == ([], [])


def test_a_newer_leader_ends_the_gates_turn_with_the_reason(yard: Yard) -> None:
    yard.ask("batch-a", 4)
    yard.ledger.take_epoch("another", yard.clock.now())
    report = turned_part(yard, TurnReport(yard.clock.now()))
    assert report.failure is not None
    assert "another leads" in report.failure
    with pytest.raises(Fenced):
        yard.ledger.check_epoch(yard.epoch)


def test_a_gate_needs_to_know_the_region(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    given = environ(yard, tmp_path / "state")
    alone = {k: v for k, v in given.items() if "FLEETS" not in k and "REGION" not in k}
    settings = load_settings(alone)
    with (
        pytest.raises(ConfigurationError, match="TRIMTAB_AWS__REGION"),
        assembled(settings, yard.clock, AwsKeys("agent", "simulated")),
    ):
        pass
