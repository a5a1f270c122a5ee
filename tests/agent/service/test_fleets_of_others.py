"""An agent with a fleet that another agent leads: shown from the ledger, and taken over with what the groups have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.autoscaling.decision import AutoscalingPart
from agent.autoscaling.page import vm_summary
from agent.kernel.leads import Leads
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.service.daemon import Loop
from agent.service.http import parts_of
from agent.service.leader import BoundLeader
from agent.settings import Settings
from agent.view.board import ServiceBoard
from agent.view.view import AgentView
from domain.clock import VirtualClock
from domain.decisions import Mode
from domain.errors import StateConflict
from domain.subject import fleet_subject
from tests.simulator.aws.world import START, World

GROUPS = {
    name: {"name": f"{name}-s", "vm_type": "m5a.large", "cores": 2, "memory_gb": 8.0, "price_per_hour": 0.086, "max": 5}
    for name in ("web", "api")
}
WEB, API = fleet_subject("web"), fleet_subject("api")
BOTH = Leads({WEB: 1, API: 1})


class Shared:
    """An agent whose share of two fleets the test sets."""

    def __init__(self, agent: Agent, cloud: World) -> None:
        self.agent, self.cloud = agent, cloud
        self.part = agent.part(AutoscalingPart)
        self.board = ServiceBoard(START)
        self.loop = Loop(agent, self.board)
        self.view = AgentView(parts_of(agent, agent.settings, self.board))

    def turn(self, leads: Leads) -> set[str]:
        """Turn with a share; return the groups of which AWS was asked."""
        self.agent.leadership.share = leads  # type: ignore[attr-defined]
        self.agent.clock.sleep(60.0)
        before = len(self.cloud.control.calls(access_key="agent"))
        self.loop.turn()
        asked = "".join(str(one["params"]) for one in self.cloud.control.calls(access_key="agent")[before:])
        return {name for name in GROUPS if f"{name}-s" in asked}

    def metrics(self, name: str) -> set[str]:
        """The fleets of which the agent has this metric."""
        return {labels[0] for metric, labels, _ in self.part.readings() if metric == name}


@pytest.fixture
def shared(cloud: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    for name in GROUPS:
        cloud.group(f"{name}-s", size=(0, 2, 5))
    cloud.control.ready_now()
    settings = Settings(
        mode=Mode.ACT,
        state_directory=tmp_path,
        listener={"port": 0},
        aws={"region": "us-east-1", "endpoint_url": cloud.running.endpoint, "read_timeout_s": 5.0},
        fleets={name: {"policy": "hold", "groups": {"workers": group}} for name, group in GROUPS.items()},
    )
    monkeypatch.setattr(BoundLeader, "leads", lambda self: self.share)
    monkeypatch.setattr(BoundLeader, "share", BOTH, raising=False)
    with assembled(settings, VirtualClock(START + 5.0), AwsKeys("agent", "simulated")) as agent:
        yield Shared(agent, cloud)


def test_a_fleet_of_another_agent_is_shown_and_neither_read_nor_measured(shared: Shared) -> None:
    assert shared.turn(BOTH) == {"web", "api"}
    assert shared.metrics("group_requested") == shared.metrics("open_intents") == {"web", "api"}
    assert len(shared.part.vms("api")) == 2
    for leads in (Leads({WEB: 1}, others={API}), Leads(others={API})):
        assert shared.turn(leads) == {"web"}
        assert shared.metrics("group_requested") == shared.metrics("open_intents") == {"web"}
        assert [one.fleet for one in shared.part.minute.snapshots] == ["web"]
        # Its last decision is shown, and no VM of it as one that does not report.
        (status,) = [one for one in shared.view.status()["subjects"]["autoscaling"] if one["fleet"] == "api"]
        assert status["groups"][0]["requested"] == 2
        summary = vm_summary(shared.part, ["web", "api"])
        assert (summary.total, summary.elsewhere) == (2, 1)
        with pytest.raises(StateConflict, match="led_by"):
            shared.part.vms("api")
        assert all(check.ok for check in shared.view.readiness().checks if check.name == "aws")


def test_an_agent_next_to_others_that_lead_everything_reads_no_group(shared: Shared) -> None:
    assert shared.turn(Leads(others={WEB, API})) == set()
    assert shared.part.minute.failure is None
    assert all(check.ok for check in shared.view.readiness().checks if check.name == "aws")


def test_a_take_over_keeps_the_groups_of_fleets_that_were_led_already(shared: Shared) -> None:
    shared.turn(Leads({WEB: 1}, others={API}))
    inventory = shared.part.loop.actuator.inventory  # type: ignore[attr-defined]
    before = len(shared.cloud.control.calls(access_key="agent"))
    assert shared.turn(BOTH) == {"web", "api"}
    calls = shared.cloud.control.calls(access_key="agent")[before:]
    hooks = [one["params"] for one in calls if one["operation"] == "DescribeLifecycleHooks"]
    assert ["api-s" in str(one) for one in hooks] == [True]
    assert shared.part.loop.actuator.inventory is inventory  # type: ignore[attr-defined]
    assert {one.fleet for one in shared.part.minute.decisions} == {"api", "web"}


def test_the_details_of_a_fleet_that_is_taken_again_are_read_again(shared: Shared) -> None:
    shared.turn(BOTH)
    shared.turn(Leads({WEB: 1}, others={API}))
    before = len(shared.cloud.control.calls(access_key="agent"))
    shared.turn(Leads({WEB: 1, API: 1}))
    calls = shared.cloud.control.calls(access_key="agent")[before:]
    assert any(one["operation"] == "DescribeLifecycleHooks" and "api-s" in str(one["params"]) for one in calls)
