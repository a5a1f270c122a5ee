"""Killed at any step of an action and started again: the fleet, and what AWS was asked, are as without the crash.

The agent is a process of its own that kills itself with SIGKILL right before or after a request or a write to the
ledger (tests/faults/crashing_agent.py). What is done once must not be done otherwise after a crash: at most one call is
repeated, none is of another kind or for another VM, and no job is lost that a crash need not cost.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from agent.ledger import Kind, Ledger
from agent.ledger.journal import JournalEntry
from domain.decisions import Reason
from tests.faults.crashing_agent import CrashWorld, Nursery
from tests.faults.world import AGENT_KEY, Plan

DECISIVE = ("commit", "SetDesired", "Terminate", "LifecycleAction", "DeleteMessage", "answer Receive")
"""Parts of the names of steps next to which something becomes durable; between others a crash finds the same state."""


@dataclass
class Work:
    """What the VMs do: jobs of one core that last until they are told otherwise, and who lost one.

    jobs: how many there are. last_job_s: how long a VM is busy after it began to drain.
    """

    jobs: int = 0
    last_job_s: float = 0.0
    draining: dict[str, float] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def minute(self, world: CrashWorld) -> None:
        """Give the VMs of this minute their jobs, and see who left with one."""
        vms = world.vms()
        there, now = {vm for _, vm, _ in vms}, world.clock.now()
        taken = world.running.cloud.spot_actions
        gone = {vm for vm in world.busy if vm not in there or taken.get(vm, now + 1.0) <= now}
        self.lost |= {vm for vm in gone if world.busy[vm] and not self.finished(vm, taken.get(vm, now))}
        cores = {group.key: group.vm_type.cores for group in world.fleet.groups}
        left, busy = self.jobs, {}
        for key, vm, state in vms:
            if state == "InService" and vm not in gone:
                busy[vm] = float(min(left, cores[key]))
                left -= int(busy[vm])
            elif state == "Terminating:Wait" and vm not in gone:
                begun = self.draining.setdefault(vm, now)
                busy[vm] = 1.0 if now - begun < self.last_job_s else 0.0
        world.busy = busy
        world.waiting, world.running_jobs = left, self.jobs - left
        world.submitted = max(world.submitted, self.jobs)

    def finished(self, vm: str, at: float) -> bool:
        """Whether the VM was told to drain early enough to have ended its last job by then."""
        return vm in self.draining and at - self.draining[vm] >= self.last_job_s


@dataclass(frozen=True)
class Scene:
    """An action: the fleet it begins with, what makes it happen, and the minutes that it takes, restarts included."""

    sizes: tuple[int, int, int]
    begin: Callable[[CrashWorld, Work], None]
    jobs: int = 0
    minutes: int = 8
    may_lose: int = 0


def more_work(world: CrashWorld, work: Work) -> None:
    work.jobs = 20


def no_work(world: CrashWorld, work: Work) -> None:
    work.jobs, work.last_job_s = 0, 130.0


def spot_notice(world: CrashWorld, work: Work) -> None:
    work.last_job_s = 50.0
    world.control.spot_notice([sorted(world.in_service("small"))[0]], queue=world.notices, duplicates=1)


def shortage(world: CrashWorld, work: Work) -> None:
    world.fault("capacity", instance_type="m5a.2xlarge")
    work.jobs = 20


def lost_answer(world: CrashWorld, work: Work) -> None:
    world.fault("timeout_after", operations=["SetDesiredCapacity"], count=1)
    work.jobs = 20


SCENES = {
    "scale-out": Scene((1, 0, 0), more_work, minutes=5),
    "scale-in with a drain": Scene((4, 0, 0), no_work, jobs=8, minutes=12),
    "replacement after a spot notice": Scene((3, 0, 0), spot_notice, jobs=6, may_lose=1),
    "shortage with give-back": Scene((1, 0, 0), shortage, minutes=9),
    "lost answer": Scene((1, 0, 0), lost_answer),
}


PARTS = 6
"""Tests that share the steps of an action, so that none takes longer than a test of a slice may (tests/sample.py)."""


@dataclass(frozen=True)
class Ending:
    """What is left when all is done: sizes, VMs in service, intents and their outcomes, calls that AWS saw."""

    desired: dict[str, int]
    in_service: dict[str, int]
    intents: Counter[tuple[str, ...]]
    open_intents: int
    calls: Counter[tuple[str, ...]]
    notices_left: int
    lost: frozenset[str]
    deaths: int
    steps: tuple[tuple[str, ...], ...]


@cache
def nursery() -> Nursery:
    return Nursery()


@pytest.fixture(scope="module", autouse=True)
def _close_the_nursery() -> Iterator[None]:
    yield
    if nursery.cache_info().currsize:
        nursery().close()
        nursery.cache_clear()


@contextmanager
def crash_world(scene: Scene) -> Iterator[CrashWorld]:
    with tempfile.TemporaryDirectory() as directory:
        world = CrashWorld(Path(directory), Plan(sizes=scene.sizes), nursery())
        try:
            yield world
        finally:
            world.close()


def play(scene: Scene, *kill_at: int) -> Ending:
    """Let the action happen with the agent dying at these steps, and return what is left of it."""
    with crash_world(scene) as world:
        work = Work(scene.jobs)
        for minute in range(2 + scene.minutes):
            if minute == 2:
                before = len(world.control.calls())
                scene.begin(world, work)
                world.arm(*kill_at)
            work.minute(world)
            world.turn()
        return ending(world, work, before)


def ending(world: CrashWorld, work: Work, since: int) -> Ending:
    with Ledger.open(world._ledger_url, read_only=True) as ledger:
        rows = ledger.journal(limit=100_000)
        still_open = len(ledger.open_intents())
    calls = Counter(
        (call["operation"], *(str(v) for k, v in sorted(call["params"].items()) if k != "HonorCooldown"))
        for call in world.control.mutations(since, access_key=AGENT_KEY)
    )
    queue = world.sqs.get_queue_attributes(QueueUrl=world.notices, AttributeNames=["All"])["Attributes"]
    left = int(queue["ApproximateNumberOfMessages"]) + int(queue["ApproximateNumberOfMessagesNotVisible"])
    serving = Counter(key for key, _, state in world.vms() if state == "InService")
    return Ending(
        world.desired(),
        dict(serving),
        actions(rows),
        still_open,
        calls,
        left,
        frozenset(work.lost),
        world.deaths,
        tuple(tuple(steps) for steps in world.steps),
    )


def actions(rows: Sequence[JournalEntry]) -> Counter[tuple[str, ...]]:
    """(group, direction, target, VMs, last status, changes achieved) of each action, however often it was decided.

    What a crash left unsent is decided again before it is sent, and ends as superseded where it is not: a restarted
    agent has to measure anew for how long a VM has been idle. The next decision for the same target goes on with it.
    """
    intents = {row.ref: row.body for row in rows if row.kind is Kind.INTENT}
    outcomes = {row.ref: row.body for row in rows if row.kind is Kind.OUTCOME}
    unfinished: dict[tuple[str, ...], tuple[set[str], int]] = {}
    found: Counter[tuple[str, ...]] = Counter()
    for ref, intent in intents.items():
        aim = (str(intent["group"]), str(intent["direction"]), str(intent["target"]))
        outcome = outcomes.get(ref, {"status": "none", "reason": "", "achieved": 0})
        vms, achieved = unfinished.pop(aim, (set(), 0))
        vms, achieved = vms | set(intent["victims"]), achieved + int(outcome["achieved"])
        if outcome["reason"] == Reason.SUPERSEDED:
            unfinished[aim] = vms, achieved
        else:
            found[*aim, ",".join(sorted(vms)), str(outcome["status"]), str(achieved)] += 1
    return found + Counter((*aim, ",".join(sorted(vms)), "superseded", str(n)) for aim, (vms, n) in unfinished.items())


@cache
def baseline(name: str) -> Ending:
    """The action without a crash."""
    return play(SCENES[name])


def steps_of(name: str) -> list[str]:
    """The steps from the start of the action to the end of the turn after its last change."""
    turns = baseline(name).steps
    last = max(k for k, steps in enumerate(turns) if any(part in step for step in steps for part in DECISIVE[1:5]))
    return [step for steps in turns[: last + 2] for step in steps]


def wrongs(name: str, *kill_at: int) -> list[str]:
    """What is otherwise than without the crash, and may not be."""
    usual, crashed = baseline(name), play(SCENES[name], *kill_at)
    # Two restarts may take longer than AWS's notice: nothing is left to replace of a VM that went with its job.
    gone = [key for key in usual.intents - crashed.intents if crashed.lost and set(key[3].split(",")) <= crashed.lost]
    crashed.intents.update(gone)
    found = [
        f"{what}: {getattr(crashed, what)}, not {getattr(usual, what)}"
        for what in ("desired", "in_service", "intents", "open_intents", "notices_left")
        if getattr(crashed, what) != getattr(usual, what)
    ]
    extra = crashed.calls - usual.calls
    if extra.total() > len(kill_at):
        found.append(f"calls repeated: {dict(extra)}")
    if extra.keys() - usual.calls.keys():
        found.append(f"calls never made without a crash: {extra.keys() - usual.calls.keys()}")
    if len(crashed.lost) > SCENES[name].may_lose:
        found.append(f"jobs lost on {sorted(crashed.lost)}")
    return found


def evenly(points: Sequence[int], most: int) -> list[int]:
    if len(points) <= most:
        return list(points)
    return sorted({points[round(k * (len(points) - 1) / (most - 1))] for k in range(most)})


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCENES)
def test_a_crash_next_to_whatever_becomes_durable_leaves_the_same_fleet(name: str) -> None:
    steps = steps_of(name)
    points = [n for n, step in enumerate(steps, start=1) if any(part in step for part in DECISIVE)]
    failed = {f"{n}: {steps[n - 1]}": found for n in evenly(points, 3) if (found := wrongs(name, n))}
    assert failed == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SCENES)
def test_a_crash_at_any_step_leaves_the_same_fleet(name: str, part: int) -> None:
    steps = list(enumerate(steps_of(name), start=1))[part::PARTS]
    assert {f"{n}: {step}": found for n, step in steps if (found := wrongs(name, n))} == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SCENES)
def test_two_crashes_in_one_action_leave_the_same_fleet(name: str, part: int) -> None:
    @seed(part)
    @settings(max_examples=2, suppress_health_check=list(HealthCheck), deadline=None)
    @given(first=st.integers(1, 60), second=st.integers(1, 40))
    def holds(first: int, second: int) -> None:
        assert wrongs(name, first, second) == []

    holds()
