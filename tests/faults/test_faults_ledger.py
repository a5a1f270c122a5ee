"""A ledger that cannot be written: nothing is executed that cannot be recorded, measuring goes on, and it recovers."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from agent.alarms.book import alarms
from agent.autoscaling.report import with_fleets
from agent.autoscaling.state import FleetStore
from agent.kernel.turn import Severity, TurnReport
from agent.ledger import Ledger
from agent.ledger.journal import Kind
from domain.decisions import Reason, Status
from domain.errors import LedgerUnavailable
from tests.faults.hands import before_call, between_look_and_leap
from tests.faults.world import MakeWorld, World


class Disk:
    """The disk under every SQLite file: how many pages a file may have, and whether anything may be written."""

    ROOM = 2**30

    def __init__(self) -> None:
        self.pages = self.ROOM
        self.read_only = False

    def fill(self) -> None:
        """Leave no room for one more page."""
        self.pages = 1

    def free(self) -> None:
        """Make room."""
        self.pages = self.ROOM

    def apply(self, connection: Any, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={self.pages}")
        connection.execute(f"PRAGMA query_only={int(self.read_only)}")


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    event.listen(Pool, "checkout", disk.apply)
    yield disk
    event.remove(Pool, "checkout", disk.apply)


def fill(world: World, disk: Disk) -> None:
    """Fill the disk and use up what room the ledger's file has inside, so that no decision can be recorded.

    Its migrations leave some pages free, and a shorter row may fit where a longer one does not.
    """
    disk.fill()
    refused = 0
    for _ in range(60):
        refused = 0 if world.tick().failure is None else refused + 1
        if refused == 3:
            return
    raise AssertionError("the ledger still takes decisions")


@pytest.mark.emulates("needs_mount")
def test_nothing_is_executed_while_the_disk_is_full_and_the_report_says_why(world: World, disk: Disk) -> None:
    world.tick()
    fill(world, disk)
    before = world.mutations
    world.submit(20)
    for _ in range(4):
        report = world.tick()
        assert report.failure is not None
        assert report.decisions == report.outcomes == ()
    assert world.mutations == before == []


def test_the_fleet_is_scaled_by_itself_once_there_is_room_again(world: World, disk: Disk) -> None:
    world.tick()
    fill(world, disk)
    world.submit(20)
    world.tick(3)
    disk.free()
    assert world.tick().failure is None
    assert world.last.reason is Reason.QUEUE_GREW
    assert world.count("SetDesiredCapacity") == len(world.last.intents) > 0
    sizes = world.desired()
    world.tick(3)
    assert world.desired() == sizes


@pytest.mark.emulates("needs_mount")
def test_measuring_goes_on_while_the_disk_is_full(world: World, disk: Disk) -> None:
    world.tick()
    fill(world, disk)
    world.busy = dict.fromkeys(world.in_service("small"), 2.0)
    heard = world.intake.accepted
    world.tick(3)
    assert world.intake.accepted - heard == 3 * 6 * (4 + 3)
    disk.free()
    world.tick()
    assert world.snapshot.coverage == 1.0
    assert world.snapshot.stale_bins == 0
    assert world.snapshot.groups[0].busy_cores == 2.0
    assert world.last.reason is Reason.QUEUE_COVERED


@pytest.mark.emulates("needs_loop")
def test_a_disk_that_fills_between_decision_and_outcome_costs_no_second_change(world: World, disk: Disk) -> None:
    world.tick()
    before_call(world, "SetDesiredCapacity", lambda: setattr(disk, "read_only", True))
    world.submit(20)
    report = world.tick()
    assert report.failure is not None
    assert world.count("SetDesiredCapacity") == 1, "the call that was on its way; the next is not made"
    for _ in range(2):
        assert world.tick().failure is not None
    assert world.count("SetDesiredCapacity") == 1
    disk.read_only = False
    world.tick(3)
    assert world.ledger.open_intents() == ()
    targets = [
        (call["params"]["AutoScalingGroupName"], call["params"]["DesiredCapacity"])
        for call in world.control.mutations(access_key="agent", operation="SetDesiredCapacity")
    ]
    assert len(targets) == len(set(targets)), "no target is set twice"
    assert {outcome.status for outcome in world.outcomes if outcome.status.final} == {Status.DONE}


def test_a_turn_that_the_ledger_ends_reports_what_it_took_before(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused at each of a turn's writes: the outcomes that it settled, its decisions, then those of its calls."""
    world = make_world(sizes=(3, 0, 0), protect_busy=True)
    drawn, reports, write = random.Random(4), [], FleetStore.record

    def refused_at(number: int) -> Callable[..., None]:
        writes = count()

        def record(*about: Any, **more: Any) -> None:
            if next(writes) >= number:
                raise LedgerUnavailable("no room")
            write(*about, **more)

        return record

    for minute in range(100):
        world.submit(5 if minute % 10 == 3 else 0)
        world.waiting = 0 if minute % 10 == 8 else world.waiting
        world.busy = dict.fromkeys(world.in_service("small")[:1], 2.0 if minute % 4 < 2 else 0.0)
        seq = world.ledger.newest_seq()
        monkeypatch.setattr(FleetStore, "record", refused_at(drawn.choice((0, 1, 2, 1000, 1000))))
        reports.append(report := world.tick())
        written = world.ledger.journal(seq, limit=1000)
        of_kind = {kind: sorted(entry.ref for entry in written if entry.kind is kind) for kind in Kind}
        assert sorted(decision.decision_id for decision in report.decisions) == of_kind[Kind.DECISION]
        assert sorted(event.about for event in report.events) == of_kind[Kind.EVENT]
        assert set(of_kind[Kind.OUTCOME]) <= {outcome.intent_id for outcome in report.outcomes}
    monkeypatch.undo()
    world.tick()
    assert {len(report.decisions) for report in reports if report.failure} == {0, 1}
    assert any(report.outcomes for report in reports if report.failure and not report.decisions), "settled"
    assert any(report.outcomes for report in reports if report.failure and report.decisions), "executed"
    protects = [event for event in world.events if event.reason is Reason.PROTECTED]
    calls = world.count("SetInstanceProtection")
    assert len(protects) == calls > 0, "the record of a call that the ledger refused comes with the next turn"


@pytest.mark.emulates("needs_loop")
def test_a_drain_is_not_begun_while_the_ledger_is_read_only(make_world: MakeWorld, disk: Disk) -> None:
    world = make_world(sizes=(3, 0, 0))
    world.tick()
    disk.read_only = True
    for _ in range(4):
        report = world.tick()
        assert report.failure is not None
    assert world.mutations == []
    disk.read_only = False
    world.tick(2)
    assert world.desired()["small"] == 1


@pytest.mark.emulates("needs_loop")
def test_a_spot_notice_that_cannot_be_recorded_comes_again(make_world: MakeWorld, disk: Disk) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold")
    world.tick()
    disk.read_only = True
    (vm,) = world.in_service("small")[:1]
    world.control.spot_notice([vm], queue=world.notices)
    assert world.tick().failure is not None
    assert world.mutations == []
    disk.read_only = False
    world.tick()
    assert [intent.victims for intent in world.last.intents] == [(vm,)]
    assert [event.about for event in world.events if event.reason is Reason.SPOT_INTERRUPTION] == [vm]


def test_a_busy_drain_gets_its_heartbeats_while_the_ledger_takes_no_write(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold")
    world.tick()
    vm = world.in_service("small")[0]
    world.busy[vm] = 2.0
    world.tick()
    world.owner.terminate_instance_in_auto_scaling_group(InstanceId=vm, ShouldDecrementDesiredCapacity=True)
    world.tick(2)
    monkeypatch.setattr(FleetStore, "record", _no_room)
    world.tick(5)
    assert world.vms("small")[0] == ("small", vm, "Terminating:Wait")
    world.busy[vm] = 0.0
    world.tick()
    assert world.count("CompleteLifecycleAction") == 0, "its end cannot be recorded"
    monkeypatch.undo()
    world.tick()
    assert [event.about for event in world.events if event.reason is Reason.DRAINED] == [vm]


def test_an_event_of_a_minute_that_the_ledger_refused_comes_with_the_next(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(sizes=(2, 0, 0), policy="hold", needed=("cpu", "queue"))
    world.submit(4)
    world.tick(5)
    monkeypatch.setattr(FleetStore, "record", _no_room)
    world.tick(2)
    monkeypatch.undo()
    world.tick(2)
    assert [event.reason for event in world.events] == [Reason.JOBS_NOT_TAKEN]


def _no_room(*about: Any, **more: Any) -> None:
    raise LedgerUnavailable("no room")


def test_a_ledger_file_that_vanished_stops_everything_until_it_is_back(world: World) -> None:
    world.tick()
    file = Path(world._ledger_url.removeprefix("sqlite:///"))
    aside = file.with_name("aside.db")
    file.rename(aside)
    world.submit(20)
    for _ in range(3):
        report = world.tick()
        assert report.failure is not None
        (alarm,) = alarms(with_fleets(TurnReport(report.at), report), lasting=True).values()
        assert alarm.reason is Reason.LEDGER_REPLACED
    assert world.mutations == []
    assert not file.exists(), "a lost ledger is not silently begun anew"
    aside.rename(file)
    assert world.tick().failure is None
    assert world.last.reason is Reason.QUEUE_GREW
    assert world.count("SetDesiredCapacity") == len(world.last.intents)


@pytest.mark.exhaustive
@pytest.mark.parametrize("overwritten", [False, True], ids=["another file", "overwritten"])
@pytest.mark.parametrize("kind", ["empty", "another", "older"])
@pytest.mark.parametrize("when", ["between turns", "before the call"])
def test_a_ledger_that_was_replaced_stops_every_call_and_raises_an_alarm(
    world: World, kind: str, overwritten: bool, when: str
) -> None:
    """Cool-downs and open intents are lost with it, its decision ids come again, and its epoch says nothing."""
    world.tick()
    file = Path(world._ledger_url.removeprefix("sqlite:///"))
    older, another, empty = (file.with_name(name) for name in ("older.db", "another.db", "empty.db"))
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(older)) as copy:
        source.backup(copy)
    with Ledger.open(f"sqlite:///{another}") as stranger:
        stranger.take_epoch("test", world.clock.now())
    empty.touch()
    world.tick()
    world.ledger.database.pragma("wal_checkpoint(TRUNCATE)")
    source_file = {"empty": empty, "another": another, "older": older}[kind]

    def replace() -> None:
        if overwritten:
            file.write_bytes(source_file.read_bytes())
        else:
            source_file.replace(file)

    if when == "between turns":
        replace()
    else:
        between_look_and_leap(world, replace)
    world.submit(20)
    for _ in range(3):
        report = world.tick()
        assert report.failure is not None
        (alarm,) = alarms(with_fleets(TurnReport(report.at), report), lasting=True).values()
        assert (alarm.reason, alarm.severity) == (Reason.LEDGER_REPLACED, Severity.CRITICAL)
    assert world.mutations == []


def test_a_writer_that_holds_the_ledger_delays_one_turn_and_breaks_nothing(world: World) -> None:
    world.tick()
    world.ledger.database._busy_timeout_s = 0.05
    world.ledger.database._engine.dispose()
    other = sqlite3.connect(world._ledger_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    world.submit(20)
    report = world.tick()
    assert report.failure is not None
    assert world.mutations == []
    other.execute("ROLLBACK")
    other.close()
    assert world.tick().failure is None
    assert world.count("SetDesiredCapacity") == len(world.last.intents) > 0


def test_no_event_of_a_call_is_lost_when_the_fence_cannot_be_read_after_it(make_world: MakeWorld) -> None:
    world = make_world(sizes=(4, 0, 0), policy="hold")
    world.tick()
    leaving = world.in_service("small")[:2]
    for vm in leaving:
        world.owner.terminate_instance_in_auto_scaling_group(InstanceId=vm, ShouldDecrementDesiredCapacity=True)
    check, refused = world.ledger.check_epoch, count()

    def broken(epoch: int) -> None:
        if world.count("CompleteLifecycleAction") == 1 and next(refused) == 0:
            raise LedgerUnavailable("no room")
        check(epoch)

    world.ledger.check_epoch = broken  # type: ignore[method-assign]
    world.tick(4)
    assert sorted(one.about for one in world.events if one.reason is Reason.DRAINED) == sorted(leaving)
