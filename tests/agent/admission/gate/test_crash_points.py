"""Killed at any step and started again: the same groups, tags, decisions and events as without the crash.

A step is a call that changes something, right before it leaves or right after its answer, or a write to the ledger,
right before or after its commit. What was done once is not done otherwise: at most one call is repeated.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from agent.admission.gate.records import group_records
from tests.agent.admission.gate.yard import Plan, Yard, watch


class Killed(BaseException):
    """The end of a process: no handler of the code under test catches it."""


@dataclass
class Steps:
    """Counts steps and dies at those in `kill_at`, each counted from the one before."""

    kill_at: list[int] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    deaths: int = 0
    since: int = 0

    def step(self, name: str) -> None:
        self.seen.append(name)
        self.since += 1
        if self.kill_at and self.since == self.kill_at[0]:
            self.kill_at.pop(0)
            self.since = 0
            self.deaths += 1
            raise Killed


@dataclass(frozen=True)
class Ending:
    """What is left when all is done."""

    desired: tuple[int, ...]
    tags: tuple[tuple[tuple[str, str], ...], ...]
    decisions: tuple[tuple[str, bool, str], ...]
    events: tuple[tuple[str, str, int], ...]
    open: int
    total: int
    calls: Counter[tuple[str, str]]
    steps: tuple[str, ...]
    deaths: int


NAMES = ("fits", "short", "toobig")


@contextmanager
def new_yard() -> Iterator[Yard]:
    with tempfile.TemporaryDirectory() as directory:
        yard = Yard(Path(directory), Plan(cores=32))
        try:
            yield yard
        finally:
            yard.close()


def play(*kill_at: int) -> Ending:
    """One group fits, AWS has no VM for another, a third is too big; then the first grows and goes."""
    steps = Steps(list(kill_at))
    with new_yard() as yard:
        watch(yard, steps.step)
        yard.world.control.add_fault("capacity", instance_type="m5a.2xlarge")
        yard.ask("fits", 2)
        yard.ask("short", 1, vm_type="m5a.2xlarge")
        yard.ask("toobig", 10)
        for minute in range(9):
            if minute == 5:
                yard.world.desire(3, "fits")
                yard.world.control.ready_now("fits")
            try:
                yard.turn()
            except Killed:
                yard.restart()
                watch(yard, steps.step)
        return Ending(
            tuple(yard.desired(name) for name in NAMES),
            tuple(tuple(sorted(yard.tags(name).items())) for name in NAMES),
            tuple((d.deployment_id, d.admit, d.reason.value) for d in yard.decisions()),
            tuple(yard.kinds()),
            sum(record.open for record in group_records(yard.ledger).read()[0].values()),
            yard.total,
            Counter(yard.mutations),
            tuple(steps.seen),
            steps.deaths,
        )


@cache
def baseline() -> Ending:
    return play()


def wrongs(*kill_at: int) -> list[str]:
    usual, crashed = baseline(), play(*kill_at)
    found = [
        f"{what}: {getattr(crashed, what)}, not {getattr(usual, what)}"
        for what in ("desired", "tags", "decisions", "events", "open", "total")
        if getattr(crashed, what) != getattr(usual, what)
    ]
    extra = crashed.calls - usual.calls
    if extra.total() > len(kill_at) or extra.keys() - usual.calls.keys():
        found.append(f"calls repeated: {dict(extra)}")
    if crashed.deaths != len(kill_at):
        found.append(f"it died {crashed.deaths} times")
    return found


def test_without_a_crash_each_group_gets_its_answer() -> None:
    usual = baseline()
    answers = [dict(tags)["admission"] for tags in usual.tags]
    assert answers == ["admitted", "refused:no_capacity", "refused:rejected_feasibility"]
    assert usual.desired == (3, 0, 0)
    assert usual.events == (("fits.1", "started", 8), ("short.1", "shutdown", 0), ("fits.1", "scaled", 4))
    assert (usual.open, usual.total) == (0, 12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(6))
def test_a_crash_at_any_step_leaves_the_same_cluster(part: int) -> None:
    steps = list(enumerate(baseline().steps, start=1))[part::6]
    assert {f"{n}: {step}": found for n, step in steps if (found := wrongs(n))} == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("second", range(1, 9))
@pytest.mark.parametrize("first", [3, 7, 11, 15])
def test_two_crashes_leave_the_same_cluster(first: int, second: int) -> None:
    assert wrongs(first, second) == []
