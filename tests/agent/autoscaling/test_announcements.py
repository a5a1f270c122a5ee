"""Announced work is kept once per id, bounded, withdrawn, seen by decisions in time, and replayed as it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.autoscaling import announcements
from agent.autoscaling.announcements import MOST, MOST_SEEN, Announced, Announcements
from agent.autoscaling.replay import replay
from agent.autoscaling.state import FleetStore
from agent.autoscaling.view import fleet_status, status_lines
from agent.ledger import Ledger
from domain.announcements import Announcement, Recurring
from domain.decisions import Reason
from domain.errors import BadInput, StateConflict, UnknownName
from tests.faults.world import Plan, World

NOW = 1_700_000_000.0
WORK = Announcement(NOW + 600.0, 200, 120.0, 300.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as made:
        yield made


@pytest.fixture
def store(ledger: Ledger) -> FleetStore:
    return FleetStore(ledger)


def made(
    name: str = "build", work: Announcement = WORK, now: float = NOW, in_minutes: float | None = None
) -> Announced:
    return Announced(name, work, "ada", now, in_minutes)


def kept(store: FleetStore) -> tuple[Announced, ...]:
    return announcements.kept(store, ["web"])["web"].announced


def test_a_time_from_now_on_is_that_of_the_first_request(store: FleetStore) -> None:
    first = made(in_minutes=10.0)
    announcements.announce(store, "web", first)
    again = made(work=replace(WORK, at=WORK.at + 30.0), now=NOW + 30.0, in_minutes=10.0)
    assert announcements.announce(store, "web", again) == (first, False)
    with pytest.raises(StateConflict):
        announcements.announce(store, "web", replace(again, in_minutes=11.0))


def test_the_journal_says_who_announced_and_withdrew_what(ledger: Ledger, store: FleetStore) -> None:
    announcements.announce(store, "web", made())
    assert announcements.withdraw(store, "web", "build", owner="bob", now=NOW + 1.0) == made()
    assert kept(store) == ()
    with pytest.raises(UnknownName, match="announced for web: none"):
        announcements.withdraw(store, "web", "build", owner="bob", now=NOW + 2.0)
    told = [row for row in ledger.journal() if row.reason == Reason.OPERATOR.value]
    details = [str(row.body["detail"]) for row in told]
    assert details[0].startswith("ada announced 200 jobs ")
    assert details[1].startswith("bob withdrew 200 jobs ")
    assert all(detail.endswith(" (build)") for detail in details)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("id", made("a b")),
        ("id", made("x" * 101)),
        ("owner", replace(made(), owner="a\nb")),
        ("at", made(work=replace(WORK, at=NOW - 301.0))),
        ("at", made(work=replace(WORK, at=NOW + 32 * 86_400.0))),
        ("jobs", made(work=replace(WORK, jobs=10**8))),
        ("job_core_s", made(work=replace(WORK, job_core_s=1e8))),
        ("over_minutes", made(work=replace(WORK, over_s=2 * 86_400.0))),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_field(store: FleetStore, field: str, wrong: Announced) -> None:
    with pytest.raises(BadInput) as caught:
        announcements.announce(store, "web", wrong)
    assert caught.value.field == field
    assert kept(store) == ()


def test_there_are_not_more_than_a_fleet_may_have_and_old_ones_make_room(store: FleetStore) -> None:
    for number in range(MOST):
        announcements.announce(store, "web", made(f"n{number}", replace(WORK, at=NOW + number)))
    with pytest.raises(StateConflict, match="withdraw some"):
        announcements.announce(store, "web", made("more"))
    late = NOW + 2 * 86_400.0
    announcements.announce(store, "web", made("more", replace(WORK, at=late), late))
    assert [one.id for one in kept(store)] == ["more"]


class TestWhatADecisionSees:
    def test_nothing_is_announced_anywhere(self) -> None:
        assert announcements.seen(Announcements(), (), NOW) is None

    def test_what_comes_within_forty_minutes_or_was_due_within_twenty(self) -> None:
        times = (-1_800.0, -1_000.0, 0.0, 2_400.0, 2_401.0)
        told = tuple(made(f"n{k}", Announcement(NOW + at, k + 1, 60.0)) for k, at in enumerate(times))
        found = announcements.seen(Announcements(told), (), NOW)
        assert found is not None
        assert [one.at - NOW for one in found] == [-1_000.0, 0.0, 2_400.0]

    def test_a_fleet_that_announces_is_one_that_does_for_a_day(self) -> None:
        told = Announcements((made(),))
        end = WORK.at + WORK.over_s
        assert announcements.seen(told, (), end + 86_400.0) == ()
        assert announcements.seen(told, (), end + 86_401.0) is None

    def test_the_schedule_joins_in(self) -> None:
        nightly = Recurring((NOW + 1_200.0) % 86_400.0, 50, 60.0)
        found = announcements.seen(Announcements((made(),)), (nightly,), NOW)
        assert found == (WORK, Announcement(NOW + 1_200.0, 50, 60.0))
        assert announcements.seen(Announcements(), (nightly,), NOW - 36_000.0) == ()

    def test_the_next_ones_where_there_are_many(self) -> None:
        told = tuple(made(f"n{k}", Announcement(NOW - 600.0 + 10.0 * k, 1, 60.0)) for k in range(200))
        found = announcements.seen(Announcements(told), (), NOW)
        assert found is not None
        assert len(found) == MOST_SEEN
        assert (found[0].at, found[-1].at) == (NOW, NOW + 10.0 * (MOST_SEEN - 1))


def test_a_turn_records_what_was_announced_and_replays_to_the_same_bytes(tmp_path: Path) -> None:
    world = World(tmp_path, Plan())
    try:
        world.tick()
        assert world.snapshot.announced is None
        now = world.agent_clock.now()
        work = Announcement(now + 900.0, 40, 60.0)
        store = FleetStore(world.ledger)
        announcements.announce(store, "web", made(work=work, now=now))
        world.tick(2)
        assert world.snapshot.announced == (work,)
        lines = status_lines(fleet_status(FleetStore(world.ledger), "web", now), now)
        assert any(line.startswith("  announced: 40 jobs ") for line in lines)
        assert all(one.same for one in replay(store.inputs("web")))
    finally:
        world.close()
