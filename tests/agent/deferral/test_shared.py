"""Two agents on one pool's ledger agree, whoever is asked; only the one that leads decides, and none sends twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.deferral.ladder import Starts
from agent.deferral.pool import DeferralPool
from agent.deferral.records import PoolHead, StepDecision
from agent.deferral.state import Change
from agent.kernel.parts import kept
from agent.kernel.transaction import Conflict
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.rules.deferral.choosing import View
from domain.units import DAY_S
from tests.agent.deferral.pools import POOL, START, begun, decided, made, order, stages, turning


@pytest.fixture
def other(path: Path, ledger: Ledger) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{path}", busy_timeout_s=30.0) as opened:
        yield opened


def test_what_one_takes_the_other_knows_starts_and_cancels(ledger: Ledger, other: Ledger, clock: VirtualClock) -> None:
    one, two = made(ledger, clock), made(other, clock)
    first = one.submit(order("a", cores=8))
    assert two.submit(order("a", cores=8)).job == first.job
    assert begun(decided(turning(two), START, cores=10)) == ["a"]
    one.submit(order("b"))
    two.cancel("b")
    assert stages(one) == stages(two) == {"a": "running", "b": "cancelled"}


def test_a_step_that_another_decided_is_not_decided_again(ledger: Ledger, other: Ledger, clock: VirtualClock) -> None:
    one, two = made(ledger, clock), made(other, clock)
    for name in ("a", "b", "c"):
        one.submit(order(name, cores=8, duration=2))
    assert len(begun(decided(turning(one), START, cores=10))) == 1
    two.report(100)
    turning(two).turn(START + 60.0, 1)
    assert list(stages(one).values()).count("running") == 1
    assert one.current().head.decisions == 1


class TestADecisionThatTakesLong:
    """Another agent takes orders while a policy is asked."""

    def asked(self, one: DeferralPool, meanwhile: Callable[[int], object]) -> tuple[StepDecision, int]:
        times = 0

        def slow(view: View, path: np.ndarray, budget_s: float) -> Starts:
            nonlocal times
            times += 1
            meanwhile(times)
            return Starts(np.array([0]))

        return decided(turning(one, rungs={"learned": slow}), START, cores=10), times

    def test_holds_beside_jobs_that_are_submitted(self, ledger: Ledger, other: Ledger, clock: VirtualClock) -> None:
        one, two = made(ledger, clock, policy="learned", learned_within_ms=5000), made(other, clock)
        for name in ("a", "b"):
            one.submit(order(name))
        step, times = self.asked(one, lambda n: [two.submit(order(f"new-{n}-{k}", cores=1 + k)) for k in range(3)])
        assert (begun(step), times) == (["a"], 1)
        assert stages(one) == stages(two) == {"a": "running", **dict.fromkeys(("b", *NEW), "waiting")}
        state = two.current()
        assert (state.head.jobs, state.head.totals.submitted, state.head.totals.started) == (5, 5, 1)
        assert sorted(job.number for job in state.jobs.values()) == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("word", ["cancel", "drain", "report"])
    def test_is_made_anew_after_anything_else(
        self, ledger: Ledger, other: Ledger, clock: VirtualClock, word: str
    ) -> None:
        one, two = made(ledger, clock, policy="learned", learned_within_ms=5000), made(other, clock)
        for name in ("a", "b"):
            one.submit(order(name))

        def meanwhile(n: int) -> None:
            two.submit(order(f"new-{n}"))
            if n == 1:
                orders: dict[str, Callable[[], object]] = {
                    "cancel": lambda: two.cancel("a"),
                    "drain": lambda: two.drain(START, "ada", "stop"),
                    "report": lambda: two.report(1),
                }
                orders[word]()

        step, times = self.asked(one, meanwhile)
        assert begun(step) == (["b"] if word == "cancel" else [])
        assert times == (2 if word == "cancel" else 1 if word == "drain" else 2)


NEW = ("new-1-0", "new-1-1", "new-1-2")


def test_a_write_from_a_state_that_has_moved_is_not_made(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    before = pool.current()
    pool.submit(order("a"))
    late = Change(replace(before.head, revision=before.head.revision + 1), jobs={"a": None})
    with pytest.raises(Conflict):
        pool.store.write(POOL, before.stored, late)
    assert stages(made(ledger, clock)) == {"a": "waiting"}
    with pytest.raises(Conflict):
        pool.store.write(POOL, None, Change(PoolHead(revision=1)))


def test_old_decisions_go_and_what_waits_stays(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    pool.submit(order("waits", cores=50, window=24 * 200))
    decided(turning(pool), START, cores=10)
    clock.advance(100 * DAY_S)
    ledger.compact(clock.now(), 90 * DAY_S, kept())
    again: DeferralPool = made(ledger, clock)
    assert stages(again) == {"waits": "waiting"}
    assert again.store.newest(POOL) == ()
    assert decided(turning(again), clock.now(), cores=10).decision_id == "night-d2"
