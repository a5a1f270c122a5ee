"""Row 20 of the fault plan, small: while lines of a thousand VMs in twenty groups pour in, no turn is missed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from actuators.autoscaling_group import AutoScalingActuator
from agent.autoscaling.fleets import ManagedFleet
from agent.autoscaling.loop import Loop
from agent.autoscaling.policies.fallback import Proposer, evaluate_within
from agent.autoscaling.report import MinuteReport
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.service.schedule import TICK, Schedule
from benchmarks.loaded_cloud import LoadedCloud, make_fleets
from collectors.inventory import Inventory
from collectors.listener import GraphiteListener
from domain.decisions import Mode
from domain.samples import PREFIX, VmMetric
from tests.waiting import until

FLEETS, VMS = 7, 1000
INTERVAL_S, TURNS = 1.0, 5
LIMITS = RailLimits()


@contextmanager
def pouring(listener: GraphiteListener, block: bytes) -> Iterator[None]:
    """Send the block over and over, as fast as it is taken."""
    stopping = threading.Event()

    def pour() -> None:
        with socket.create_connection((listener.host, listener.port)) as sender:
            while not stopping.is_set():
                sender.sendall(block)

    thread = threading.Thread(target=pour)
    thread.start()
    yield
    stopping.set()
    thread.join(60.0)
    assert not thread.is_alive()


@pytest.mark.exhaustive
def test_no_turn_is_missed_while_lines_pour_in(tmp_path: Path) -> None:
    fleets = make_fleets(FLEETS, VMS)
    cloud = LoadedCloud(fleets, VMS // FLEETS, [0.6] * FLEETS, seed=3)
    clock, store = cloud.clock, SeriesStore(watched=fleets)
    homes = {group.name: (fleet.name, group.key) for fleet in fleets for group in fleet.groups}
    block = "".join(
        f"{PREFIX}.{'.'.join(homes[group['AutoScalingGroupName']])}.{one['InstanceId']}.{metric} 1 -1\n"
        for group in cloud.described()
        for one in group["Instances"]
        for metric in VmMetric
    ).encode()
    reports: list[MinuteReport] = []
    lines_by_turn: list[int] = []
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        loop = Loop(
            fleets=tuple(
                ManagedFleet(fleet, LIMITS, "hold", (), AggregationSettings(limits=LIMITS)) for fleet in fleets
            ),
            store=FleetStore(ledger),
            actuator=AutoScalingActuator(cloud, Inventory(cloud), fleets),
            aggregator=Aggregator(store),
            proposer=Proposer(evaluate_within(1.0)),
            clock=clock,
            mode=Mode.ACT,
            leads=Leads(every=ledger.take_epoch("test", clock.now())),
        )
        listener = GraphiteListener(store, clock.now, port=0)
        listener.start()

        def turn() -> None:
            clock.advance(60.0)
            reports.append(loop.turn(clock.now()))
            lines_by_turn.append(listener.counters.accepted)

        schedule = Schedule()
        tick = schedule.add(TICK, turn, INTERVAL_S)
        with pouring(listener, block):
            schedule.start()
            time.sleep(TURNS * INTERVAL_S)
            assert schedule.stop(10.0)
        # Whoever sent has hung up by now; the rest is read before the listener ends, or a line would be cut.
        until(lambda: listener.counters.connections_open == 0)
        listener.stop()
    # One less than there was time for: a machine may be busy, but a turn that is missed is missed for a whole interval.
    assert tick.turns >= TURNS - 1
    assert (tick.failures, tick.rescued, tick.overruns) == (0, 0, 0)
    assert [len(report.decisions) for report in reports] == [FLEETS] * tick.turns
    assert all(after > before for before, after in pairwise(lines_by_turn))
    assert lines_by_turn[-1] > 10 * VMS * len(VmMetric)
    assert listener.counters.rejected_total == 0
