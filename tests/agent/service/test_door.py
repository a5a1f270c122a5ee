"""The door over real sockets, on an agent put together from settings: what is refused is counted, recorded, alarmed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.alarms.book import AlarmBook
from agent.autoscaling.decision import AutoscalingPart
from agent.kernel.turn import TurnReport
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.service.chores import check_itself
from agent.service.daemon import Loop
from agent.service.http import parts_of
from agent.settings import Settings
from agent.view.board import ServiceBoard
from collectors.vm_names import SPARE
from domain.clock import VirtualClock
from domain.decisions import Event, Mode, Reason
from domain.samples import VmMetric
from tests.simulator.aws.world import START, World
from tests.waiting import until

GROUP = {"name": "web-s", "vm_type": "m5a.large", "cores": 2, "memory_gb": 8.0, "price_per_hour": 0.086, "max": 5}
MINUTE_S = 60.0


@dataclass
class Site:
    """An agent on the simulated cloud, its loop, its clock, and the alarms that its turns raise."""

    agent: Agent
    loop: Loop
    clock: VirtualClock
    cloud: World
    reports: list[TurnReport] = field(default_factory=list)
    alarms: AlarmBook = field(default_factory=AlarmBook)

    def turn(self) -> TurnReport:
        """Let a minute pass and turn once."""
        self.clock.advance(MINUTE_S)
        self.loop.turn()
        self.alarms.turn(self.reports[-1])
        return self.reports[-1]

    def send(self, *lines: str, source: str = "127.0.0.2") -> int:
        """Send lines, stamped now where they carry no time, and return how many were taken."""
        counters = self.agent.listener.counters
        taken, refused = counters.accepted, counters.rejected_total
        text = "".join(f"{line} {self.clock.now()}\n" for line in lines)
        listener = self.agent.listener
        with socket.create_connection((listener.host, listener.port), 5.0, source_address=(source, 0)) as sender:
            sender.sendall(text.encode())
            until(lambda: counters.accepted + counters.rejected_total - taken - refused == len(lines))
        return counters.accepted - taken

    def recorded(self, reason: Reason) -> list[tuple[str, str]]:
        """Return subject and detail of every event of this reason in the journal."""
        rows = [*self.agent.ledger.journal(limit=1000)]
        return [(row.ref, str(row.body["detail"])) for row in rows if row.reason == reason]


def of(report: TurnReport, reason: Reason) -> list[Event]:
    """Return the events of this reason in a turn."""
    return [event for event in report.events if event.reason is reason]


@pytest.fixture
def start(cloud: World, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    cloud.group("web-s", size=(0, 1, 5))
    cloud.control.ready_now()
    made = []

    def make(fleet: dict[str, Any] | None = None, **settings: Any) -> Site:
        given = {
            "mode": Mode.ACT,
            "state_directory": tmp_path,
            "listener": {"port": 0},
            "aws": {"region": "us-east-1", "endpoint_url": cloud.running.endpoint},
            "fleets": {"web": {"policy": "queue-rule", "groups": {"workers": GROUP}, **(fleet or {})}},
            **settings,
        }
        clock = VirtualClock(START + 5.0)
        context = assembled(Settings(**given), clock, AwsKeys("agent", "simulated"))
        agent = context.__enter__()
        made.append(context)
        board = ServiceBoard(START)
        site = Site(agent, Loop(agent, board), clock, cloud)
        board.listen(lambda _, report: site.reports.append(report))
        return site

    yield make
    for context in made:
        context.__exit__(None, None, None)


@pytest.mark.exhaustive
def test_a_sender_from_outside_the_networks_is_an_event_and_an_alarm_once(start: Callable[..., Site]) -> None:
    site = start(listener={"port": 0, "networks": "127.0.0.2/32"})
    listener = site.agent.listener
    for _ in range(3):
        with socket.create_connection((listener.host, listener.port), 5.0, source_address=("127.0.0.3", 0)):
            pass
    until(lambda: listener.counters.connections_foreign == 3)
    (event,) = of(site.turn(), Reason.SENDER_REFUSED)
    assert event.detail.startswith("3 connections ")
    assert [text for text in ("127.0.0.3", "TRIMTAB_LISTENER__NETWORKS") if text not in event.detail] == []
    assert site.recorded(Reason.SENDER_REFUSED) == [("networks", event.detail)]
    assert [a.about for a in site.alarms.active if a.reason is Reason.SENDER_REFUSED] == ["networks"]
    assert of(site.turn(), Reason.SENDER_REFUSED) == []


@pytest.mark.exhaustive
def test_refusals_that_go_on_come_again_before_their_alarm_would_be_over(start: Callable[..., Site]) -> None:
    site = start(listener={"port": 0, "networks": "127.0.0.2/32"})
    counters = site.agent.listener.counters
    seen = 0
    for _ in range(65):
        counters.connections_foreign += 1
        seen += len(of(site.turn(), Reason.SENDER_REFUSED))
        assert [alarm.reason for alarm in site.alarms.active].count(Reason.SENDER_REFUSED) == 1
    assert seen == 4
    assert len(site.recorded(Reason.SENDER_REFUSED)) == 4


def test_a_claim_that_is_not_believed_is_an_event_of_its_fleet_with_its_setting(start: Callable[..., Site]) -> None:
    site = start({"claims": {"max_waiting": 500}})
    assert site.send("trimtab.web.queue.waiting 1e15", "trimtab.web.queue.running 0") == 1
    (event,) = of(site.turn(), Reason.CLAIM_REFUSED)
    assert (event.subject.name, event.about) == ("web", "queue.waiting")
    named = (
        "1 readings of queue.waiting",
        "1e+15",
        "127.0.0.2",
        "0 to 500",
        "TRIMTAB_FLEETS__web__CLAIMS__MAX_WAITING",
    )
    assert [text for text in named if text not in event.detail] == []
    assert site.recorded(Reason.CLAIM_REFUSED) == [("queue.waiting", event.detail)]
    assert [a.subject.name for a in site.alarms.active if a.reason is Reason.CLAIM_REFUSED] == ["web"]
    (decision,) = site.agent.part(AutoscalingPart).minute.decisions
    assert decision.reason is Reason.STALE_INPUT
    assert decision.intents == ()


@pytest.mark.parametrize("other", ["127.0.0.2", "127.0.0.3"])
def test_two_senders_that_disagree_about_a_vm_are_an_event_and_an_alarm_with_both(
    start: Callable[..., Site], other: str
) -> None:
    site = start()
    (vm,) = [vm["InstanceId"] for vm in site.cloud.show("web-s")["Instances"]]
    site.turn()
    for value, source in ((2, "127.0.0.2"), (0, other)):
        assert site.send(f"trimtab.web.workers.{vm}.busy_cores {value}", source=source) == 1
    (event,) = of(site.turn(), Reason.INPUT_CONFLICT)
    assert (event.subject.name, event.about) == ("web", "workers.busy_cores")
    assert [text for text in (vm, "2 from 127.0.0.2:", f"0 from {other}:") if text not in event.detail] == []
    assert [a.about for a in site.alarms.active if a.reason is Reason.INPUT_CONFLICT] == ["workers.busy_cores"]
    assert of(site.turn(), Reason.INPUT_CONFLICT) == []


def test_a_claim_below_zero_is_refused_by_no_setting(start: Callable[..., Site]) -> None:
    site = start({"claims": {"max_waiting": 500}})
    assert site.send("trimtab.web.queue.waiting -5") == 0
    (event,) = of(site.turn(), Reason.CLAIM_REFUSED)
    assert ("none is below 0" in event.detail, "MAX_WAITING" in event.detail) == (True, False)


@pytest.mark.parametrize(("step_s", "side"), [(40.0, "ahead of"), (-40.0, "behind")])
def test_a_clock_that_differs_from_that_of_aws_is_an_event_an_alarm_and_not_ready(
    start: Callable[..., Site], step_s: float, side: str
) -> None:
    site = start()
    parts = parts_of(site.agent, site.agent.settings, site.loop.board)
    site.clock.step(-20.0)
    site.loop.turn()
    assert of(site.reports[-1], Reason.CLOCK_WRONG) == []
    assert {check.name: check.ok for check in (one() for one in parts.checks)}["clock"]
    site.clock.step(15.0 + step_s)
    site.loop.turn()
    site.alarms.turn(site.reports[-1])
    (event,) = of(site.reports[-1], Reason.CLOCK_WRONG)
    assert (event.about, side in event.detail, "NTP" in event.detail) == ("clock", True, True)
    assert [alarm.reason for alarm in site.alarms.active if alarm.reason is Reason.CLOCK_WRONG] == [Reason.CLOCK_WRONG]
    assert not {check.name: check.ok for check in (one() for one in parts.checks)}["clock"]
    check_itself(site.agent.settings, site.agent, site.loop.board)
    assert side in site.loop.board.read().problems["clock"]


@pytest.mark.exhaustive
def test_sixty_thousand_invented_names_over_a_socket_lock_out_no_vm(start: Callable[..., Site]) -> None:
    site = start()
    site.turn()
    taken = site.send(*(f"trimtab.web.workers.x-{n}.cpu_percent 1" for n in range(60_000)), source="127.0.0.66")
    assert taken == GROUP["max"] + SPARE
    (vm,) = [vm["InstanceId"] for vm in site.cloud.show("web-s")["Instances"]]
    assert site.send(*(f"trimtab.web.workers.{vm}.{metric} 1" for metric in VmMetric)) == len(VmMetric)
    (event,) = of(site.turn(), Reason.SENDER_REFUSED)
    assert (event.subject.name, event.about) == ("web", "workers")
    assert event.detail.startswith("59979 readings ")
    assert "of 127.0.0.66: " in event.detail
    site.turn()
    site.turn()
    assert list(site.agent.part(AutoscalingPart).series.vm_rows("web", "workers")) == [vm]
    assert [a.about for a in site.alarms.active if a.reason is Reason.SENDER_REFUSED] == ["workers"]


@pytest.mark.exhaustive
def test_a_booting_vms_first_lines_count_over_a_socket(start: Callable[..., Site]) -> None:
    site = start()
    site.turn()
    site.cloud.desire(2, "web-s")
    site.cloud.control.ready_now("web-s")
    new = [vm["InstanceId"] for vm in site.cloud.show("web-s")["Instances"]]
    first = site.clock.now() + 5.0
    for _ in range(6):
        site.clock.advance(5.0)
        for vm in new:
            site.send(*(f"trimtab.web.workers.{vm}.{metric} 1" for metric in VmMetric))
    site.turn()
    (snapshot,) = site.agent.part(AutoscalingPart).minute.snapshots
    assert (snapshot.warm, snapshot.coverage) == ((2,), 1.0)
    rows = site.agent.part(AutoscalingPart).series.vm_rows("web", "workers")
    assert [site.agent.part(AutoscalingPart).series.readings(rows[vm][0], site.clock.now())[0][0] for vm in new] == [
        first,
        first,
    ]
