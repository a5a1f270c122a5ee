"""Jobs pass through SQS: recorded before their messages are deleted, their starts recorded before they are sent."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from agent.deferral.queue import Sending, in_calls, start_message
from agent.deferral.records import RefusedMessage
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.controls import Pause, PauseScope
from domain.errors import CloudError, FailureClass, LedgerUnavailable, StateConflict
from domain.units import HOUR_S
from tests.agent.deferral.pools import POOL, START, Make, Queues, begun, decided, job, made, order, stages


def test_a_message_becomes_a_job_and_its_start_a_message(make: Make) -> None:
    q = make()
    q.put(job("a", payload="run me"), job("b", cores=90))
    assert begun(decided(q.turns, START, cores=10)) == ["a"]
    assert q.left() == 0
    (start,) = q.ready()
    assert start == {
        "version": 1,
        "pool": POOL,
        "job_id": "a",
        "cores": 4,
        "duration_steps": 2,
        "start_at": START,
        "end_at": START + 2 * HOUR_S,
        "decision_id": "night-d1",
        "payload": "run me",
    }
    assert stages(q.pool) == {"a": "running", "b": "waiting"}


def test_a_message_that_comes_again_is_counted_and_deleted(make: Make) -> None:
    q = make()
    q.put(job("a"), job("a"))
    decided(q.turns, START, cores=10)
    assert (q.left(), q.pool.job("a").duplicates, q.pool.current().head.totals.duplicates) == (0, 1, 1)
    assert [one["job_id"] for one in q.ready()] == ["a"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("not json", "body is 'not json': send a job as a JSON object"),
        ("[1]", "send a job as a JSON object"),
        (job("a", cores=0), "cores is 0"),
        (job("a", cores=1.5), "cores is 1.5"),
        ('{"job_id": "a", "cores": NaN, "duration_steps": 1, "latest_at": 1795300000}', "cores is nan"),
        (job("a", latest_at=START - 1.0), "expired"),
        (job("a", version=2), "version is 2"),
        (job("a", colour="red"), "colour is 'red'"),
        (json.dumps({"job_id": "a"}), "cores is None"),
        (job("a b"), "job_id is 'a b'"),
        ("[" * 100_000, "send a job as a JSON object"),
    ],
)
def test_a_message_that_is_no_job_is_recorded_whole_with_the_reason(make: Make, body: str, words: str) -> None:
    q = make()
    q.put(body)
    decided(q.turns, START, cores=10)
    (refused,) = q.pool.store.newest(POOL, 5, "refusal")
    assert isinstance(refused, RefusedMessage)
    assert words in refused.detail
    assert refused.body == body
    assert (q.left(), stages(q.pool), q.pool.current().head.totals.refused) == (0, {}, 1)
    assert "job_refused" in [event.reason.value for event in q.pool.taken_alarms()]


def test_an_id_with_other_content_is_refused_and_the_first_job_stays(make: Make) -> None:
    q = make()
    q.put(job("a", cores=4))
    decided(q.turns, START, cores=0)
    q.put(job("a", cores=5))
    q.turns.turn(START + 60.0, 1)
    assert (q.pool.job("a").cores, q.pool.current().head.totals.refused) == (4, 1)


def test_an_observing_pool_touches_no_queue(make: Make) -> None:
    q = make(mode="observe")
    q.put(job("a"))
    q.pool.submit(order("b"))
    assert begun(decided(q.turns, START, cores=10)) == ["b"]
    assert q.left() == 1
    assert q.ready() == []


def test_jobs_for_one_queue_of_many_calls_all_arrive(make: Make) -> None:
    q = make()
    q.put(*(job(f"j{n}", cores=1, payload="x" * 4000) for n in range(23)))
    decided(q.turns, START, cores=30)
    assert Counter(one["job_id"] for one in q.ready()) == Counter(f"j{n}" for n in range(23))
    assert set(stages(q.pool).values()) == {"running"}


class TestASendThatFails:
    """What becomes of starts that SQS did not take, or may not have taken."""

    def failing(self, q: Queues, failure: FailureClass | None, *, arrives: bool = False) -> None:
        """Let sends fail so from now on, None for no more."""
        real = type(q.session).mutate

        def mutate(service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
            if operation == "SendMessageBatch" and failure is not None:
                if arrives:
                    real(q.session, service, operation, **parameters)
                raise CloudError(operation, failure, "Test", "it failed")
            return real(q.session, service, operation, **parameters)

        q.session.mutate = mutate  # type: ignore[method-assign]

    def test_is_tried_again_in_the_next_turn_and_is_no_repetition(self, make: Make) -> None:
        q = make(fifo=False)
        q.put(job("a"))
        self.failing(q, FailureClass.THROTTLE)
        decided(q.turns, START, cores=10)
        assert stages(q.pool) == {"a": "starting"}
        assert "1 starts were not sent" in q.turns.problem
        self.failing(q, None)
        q.turns.turn(START + 60.0, 1)
        assert stages(q.pool) == {"a": "running"}
        assert len(q.ready()) == 1
        assert q.pool.current().head.totals.repeated_starts == 0

    def test_for_a_whole_step_leaves_the_job_waiting(self, make: Make) -> None:
        q = make()
        q.put(job("a", duration=3))
        self.failing(q, FailureClass.UNAVAILABLE)
        decided(q.turns, START, cores=10)
        self.failing(q, FailureClass.PERMANENT)
        q.turns.turn(START + 60.0, 1)
        q.clock.advance(HOUR_S)
        self.failing(q, None)
        # It is decided anew: there may be no room, or its window may be over.
        step = decided(q.turns, q.clock.now(), cores=10)
        assert (begun(step), stages(q.pool)) == (["a"], {"a": "running"})
        assert (q.pool.job("a").start, q.pool.job("a").free_from) == (step.step, step.step + 3)
        assert [one["decision_id"] for one in q.ready()] == ["night-d2"]

    def test_for_ever_gives_the_job_back_each_step_until_it_expires(self, make: Make) -> None:
        q = make()
        q.put(job("a", cores=8, duration=2, latest_at=START + HOUR_S))
        self.failing(q, FailureClass.UNAVAILABLE)
        started = []
        for _ in range(3):
            started.append(begun(decided(q.turns, q.clock.now(), cores=10)))
            q.clock.advance(HOUR_S)
        assert started == [["a"], ["a"], []]
        assert stages(q.pool) == {"a": "expired"}
        totals = q.pool.current().head.totals
        assert (totals.started, totals.unsent_starts, totals.started_core_steps) == (0, 2, 0)
        assert q.ready() == []

    @pytest.mark.parametrize(("fifo", "copies", "counted"), [(True, 1, 0), (False, 2, 1)])
    def test_unknown_to_the_agent_is_sent_again_with_its_id(
        self, make: Make, fifo: bool, copies: int, counted: int
    ) -> None:
        q = make(fifo=fifo)
        q.put(job("a"))
        self.failing(q, FailureClass.UNKNOWN_OUTCOME, arrives=True)
        decided(q.turns, START, cores=10)
        assert stages(q.pool) == {"a": "starting"}
        self.failing(q, None)
        q.clock.advance(60.0)
        q.turns.turn(q.clock.now(), 1)
        assert stages(q.pool) == {"a": "running"}
        assert len(q.ready()) == copies
        assert q.pool.current().head.totals.repeated_starts == counted

    def test_unknown_for_longer_than_a_fifo_queue_remembers_is_counted(self, make: Make) -> None:
        q = make()
        q.put(job("a"))
        self.failing(q, FailureClass.UNKNOWN_OUTCOME, arrives=True)
        decided(q.turns, START, cores=10)
        self.failing(q, None)
        q.clock.advance(301.0)
        q.turns.turn(q.clock.now(), 1)
        assert q.pool.current().head.totals.repeated_starts == 1
        assert "start_repeated" in [event.reason.value for event in q.pool.taken_alarms()]

    def test_unknown_is_never_given_up(self, make: Make) -> None:
        q = make()
        q.put(job("a", latest_at=START + HOUR_S))
        self.failing(q, FailureClass.UNKNOWN_OUTCOME)
        decided(q.turns, START, cores=10)
        self.failing(q, FailureClass.THROTTLE)
        for _ in range(4):
            q.clock.advance(HOUR_S)
            q.turns.turn(q.clock.now(), 1)
        # It may run: its cores are held, and it is sent until it has arrived.
        assert stages(q.pool) == {"a": "starting"}
        self.failing(q, None)
        q.turns.turn(q.clock.now() + 60.0, 1)
        assert [one["job_id"] for one in q.ready()] == ["a"]

    def test_is_held_by_a_pause_that_came_after_the_decision(self, make: Make, ledger: Ledger) -> None:
        q = make()
        q.put(job("a"))
        self.failing(q, FailureClass.THROTTLE)
        decided(q.turns, START, cores=10)
        self.failing(q, None)
        ledger.pause("deferral", POOL, Pause(PauseScope.OUT, "ada", "wait", START, START + 120.0))
        q.turns.turn(START + 60.0, 1)
        assert (stages(q.pool), q.ready()) == ({"a": "starting"}, [])
        q.clock.advance(180.0)
        q.turns.turn(q.clock.now(), 1)
        assert stages(q.pool) == {"a": "running"}

    def test_is_not_cancelled_while_it_is_not_known_whether_it_arrived(self, make: Make) -> None:
        q = make()
        q.put(job("a"))
        self.failing(q, FailureClass.UNKNOWN_OUTCOME)
        decided(q.turns, START, cores=10)
        with pytest.raises(StateConflict, match="its start is being sent"):
            q.pool.cancel("a")


def test_calls_stay_below_what_sqs_takes(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    jobs = [pool.submit(order(f"j{n}", payload="x" * 4096)).job for n in range(25)]
    calls = list(in_calls(jobs))
    assert [len(call) for call in calls] == [10, 10, 5]
    sizes = [sum(len(json.dumps(start_message(POOL, replace(one, start=1), 3600))) for one in call) for call in calls]
    assert max(sizes) < 256 * 1024
    assert Sending() == Sending((), {}, {})


def test_a_message_whose_job_could_not_be_recorded_stays_on_the_queue(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = make()
    q.put(job("a"))

    def full(*about: object, **more: object) -> bytes:
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(q.pool.store, "write", full)
        with pytest.raises(LedgerUnavailable):
            q.turns.turn(START, 1)
    assert q.left() == 1
