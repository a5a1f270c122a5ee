"""The policy, the collector and the actuator of another package, in the loop and under its guards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from actuators.base import Refusal
from agent.autoscaling.decision import AutoscalingPart
from agent.autoscaling.preflight.fleets import check_collectors, check_plug_ins
from agent.autoscaling.state import FleetStore
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.service.daemon import Loop
from agent.settings import load_settings
from agent.view.board import ServiceBoard
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from domain.decisions import Direction, Intent, Mode, Reason, Status
from domain.errors import ConfigurationError, FailureClass
from tests.agent.service.conftest import cloud
from tests.plug_ins import example_installed, on_path, package
from tests.simulator.aws.world import START, World
from tests.waiting import until

__all__ = ["cloud"]

GROUP = {"NAME": "web-s", "VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MAX": "5"}


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRIMTAB_STEADY__SIZE", "3")
    monkeypatch.setenv("TRIMTAB_BACKLOG__WAITING", "12")
    with example_installed(tmp_path / "site"):
        yield


def environ_of(cloud: World, directory: Path, mode: Mode = Mode.ACT, **more: str) -> dict[str, str]:
    return {
        "TRIMTAB_MODE": mode.value,
        "TRIMTAB_STATE_DIRECTORY": str(directory),
        "TRIMTAB_LISTENER__PORT": "0",
        "TRIMTAB_AWS__REGION": "us-east-1",
        "TRIMTAB_AWS__ENDPOINT_URL": cloud.running.endpoint,
        "TRIMTAB_FLEETS__web__POLICY": "steady",
        "TRIMTAB_FLEETS__web__RAILS__MIN_COVERAGE": "0",
        "TRIMTAB_FLEETS__web__RAILS__MAX_AGE_S": "3600",
        **{f"TRIMTAB_FLEETS__web__GROUPS__workers__{name}": text for name, text in GROUP.items()},
        **more,
    }


@contextmanager
def agent_on(cloud: World, directory: Path, mode: Mode = Mode.ACT, **more: str) -> Iterator[Agent]:
    cloud.group("web-s", size=(0, 1, 5))
    cloud.control.ready_now()
    settings = load_settings(environ_of(cloud, directory, mode, **more))
    clock = VirtualClock(START + 650.0)  # the first VM is no longer young: AWS started it at START
    with assembled(settings, clock, AwsKeys("agent", "simulated")) as agent:
        until(lambda: agent.poller.health["backlog:web"].successes)
        clock.advance(15.0)  # the minute is over, and its time for late samples too
        yield agent


def desired(cloud: World) -> int:
    return int(cloud.show("web-s")["DesiredCapacity"])


def turned(agent: Agent) -> None:
    Loop(agent, ServiceBoard(START)).turn()


@pytest.mark.exhaustive
def test_the_policy_decides_on_what_the_collector_brings(cloud: World, tmp_path: Path) -> None:
    with agent_on(cloud, tmp_path) as agent:
        turned(agent)
        inputs, decision = next(iter(FleetStore(agent.ledger).inputs("web")))
        assert inputs.policy == decision.proposal.policy == "steady:size=3"
        assert inputs.snapshot is not None
        assert inputs.snapshot.queue is not None
        assert inputs.snapshot.queue.waiting == 12
        assert decision.desired == (3,)
        assert [one.same for one in agent.part(AutoscalingPart).replay("web", None, None)] == [True]
    assert desired(cloud) == 3


def test_the_policy_has_a_deadline_and_rules_that_stand_in(
    cloud: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent_on(cloud, tmp_path) as agent:
        monkeypatch.setattr(import_module("trimtab_example").SteadyPolicy, "decide", lambda *given: 1 / 0)
        turned(agent)
        _, decision = next(iter(FleetStore(agent.ledger).inputs("web")))
        assert "ZeroDivisionError" in decision.policy_failures[0]
        assert decision.proposal.policy.startswith("queue-rule:")


def test_the_actuator_of_the_settings_acts(cloud: World, tmp_path: Path) -> None:
    with agent_on(cloud, tmp_path, TRIMTAB_ACTUATOR="grow_only") as agent:
        assert type(agent.part(AutoscalingPart).loop.actuator).__name__ == "GrowOnly"
        turned(agent)
        assert desired(cloud) == 3
        cloud.control.ready_now()
        turned(agent)
        assert not agent.ledger.open_intents("web")


def intent(agent: Agent) -> Intent:
    at = agent.clock.now()
    return Intent("web-1-workers", "web-1", "web", "workers", Direction.OUT, 1, 3, (), 1, at, at + 300.0)


def test_observe_mode_stops_its_calls_whatever_its_permit_says(cloud: World, tmp_path: Path) -> None:
    with agent_on(cloud, tmp_path, Mode.OBSERVE, TRIMTAB_ACTUATOR="grow_only") as agent:
        turned(agent)
        loop = agent.part(AutoscalingPart).loop
        at = agent.clock.now()
        observed = loop.actuator.observe([loop.fleets[0].fleet], at)
        outcome = loop.actuator.apply(intent(agent), observed, at, lambda call: None)
        assert (outcome.status, outcome.failure) == (Status.SKIPPED, FailureClass.READ_ONLY)
    assert desired(cloud) == 1


def test_the_fence_stops_its_calls_whatever_its_permit_says(cloud: World, tmp_path: Path) -> None:
    with agent_on(cloud, tmp_path, TRIMTAB_ACTUATOR="grow_only") as agent:
        loop = agent.part(AutoscalingPart).loop
        at = agent.clock.now()
        observed = loop.actuator.observe([loop.fleets[0].fleet], at)
        agent.ledger.take_epoch("another agent", at)
        outcome = loop.actuator.apply(intent(agent), observed, at, lambda call: None)
        assert (outcome.status, outcome.reason) == (Status.IN_PROGRESS, Reason.NOT_LEADER)
    assert desired(cloud) == 1


def test_a_permit_that_refuses_keeps_its_call_from_being_sent(cloud: World, tmp_path: Path) -> None:
    with agent_on(cloud, tmp_path, TRIMTAB_ACTUATOR="grow_only") as agent:
        loop = agent.part(AutoscalingPart).loop
        at = agent.clock.now()
        observed = loop.actuator.observe([loop.fleets[0].fleet], at)
        outcome = loop.actuator.apply(intent(agent), observed, at, lambda call: Refusal(Reason.PAUSED, "held by ada"))
        assert (outcome.status, outcome.reason) == (Status.SKIPPED, Reason.PAUSED)
    assert desired(cloud) == 1


@pytest.mark.parametrize(
    ("group", "name", "symbol"),
    [("trimtab.collectors", "backlog", "BACKLOG"), ("trimtab.actuators", "grow_only", "GROW_ONLY")],
)
def test_one_that_cannot_be_made_keeps_the_agent_from_starting(
    cloud: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, name: str, symbol: str
) -> None:
    example = import_module("trimtab_example")

    def broken(*given: object) -> None:
        raise RuntimeError("no battery")

    monkeypatch.setattr(example, symbol, replace(getattr(example, symbol), make=broken))
    refusal = f"{group}={name} = .* of trimtab-example: .*RuntimeError: no battery"
    with (
        pytest.raises(ConfigurationError, match=refusal),
        agent_on(cloud, tmp_path, TRIMTAB_ACTUATOR="grow_only"),
    ):
        pass


def test_two_collectors_of_one_name_are_refused(cloud: World, tmp_path: Path) -> None:
    package(tmp_path / "more", "more", {"trimtab.collectors": {"backlog2": "trimtab_example:BACKLOG"}})
    with on_path(tmp_path / "more"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIMTAB_BACKLOG2__WAITING", "12")
        twice = pytest.raises(ConfigurationError, match="backlog:web: two")
        with twice, agent_on(cloud, tmp_path):
            pass


def test_preflight_names_the_package_of_each_one_that_cannot_be_used(
    cloud: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings(environ_of(cloud, tmp_path, TRIMTAB_ACTUATOR="grow_only"))
    example = import_module("trimtab_example")
    for symbol in ("BACKLOG", "GROW_ONLY"):
        monkeypatch.setattr(example, symbol, "no kind")
    monkeypatch.setenv("TRIMTAB_STEADY__SIZE", "many")
    session = AwsSession(AwsOptions("us-east-1"), VirtualClock(START), read_only=True)
    found = {one.subject: one.detail for one in (*check_plug_ins(settings), *check_collectors(settings, session))}
    assert found.keys() == {"policies", "actuator", "collectors"}
    assert "TRIMTAB_STEADY__SIZE=" in found["policies"]
    assert "GROW_ONLY" in found["actuator"]
    assert "BACKLOG" in found["collectors"]
