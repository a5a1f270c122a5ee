"""Faults around queues, clock and ledger: no job is lost, none starts twice, and the pool says what is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.deferral.decision import DeferralPart
from agent.deferral.pool import DeferralPool, reserved_cores
from agent.deferral.queue import BYTES_PER_CALL, in_calls, start_message
from agent.deferral.records import Stage
from agent.kernel.decision import Capacity, Host
from agent.ledger import Ledger
from agent.settings import Settings, load_settings
from domain.clock import VirtualClock
from domain.controls import Pause, PauseScope
from domain.errors import CloudError, ConfigurationError, FailureClass, LedgerUnavailable, StateConflict
from domain.units import DAY_S, HOUR_S
from tests.agent.deferral.pools import POOL, START, Make, Queues, begun, decided, job, made, order, stages, turning
from tests.stages import exhaustive

Answer = dict[str, Any] | CloudError


def answering(q: Queues, operation: str, answer: Callable[[dict[str, Any]], Answer] | None) -> None:
    """Let AWS answer an operation so from now on and do nothing, None for as it is."""
    real = type(q.session).mutate

    def mutate(service: str, named: str, /, **parameters: Any) -> dict[str, Any]:
        if named == operation and answer is not None:
            found = answer(parameters)
            if isinstance(found, CloudError):
                raise found
            return found
        return real(q.session, service, named, **parameters)

    q.session.mutate = mutate  # type: ignore[method-assign]


def denied(operation: str, failure: FailureClass = FailureClass.CREDENTIALS) -> Callable[[dict[str, Any]], Answer]:
    return lambda parameters: CloudError(operation, failure, "AccessDenied", "not allowed")


def refused_one_by_one(parameters: dict[str, Any]) -> Answer:
    """As SQS answers a batch of which it does none."""
    return {"Failed": [{"Id": one["Id"], "Code": "ReceiptHandleIsInvalid"} for one in parameters["Entries"]]}


def hidden_over(q: Queues) -> None:
    q.clock.advance(121.0)


@pytest.mark.parametrize("answer", [denied("DeleteMessageBatch"), refused_one_by_one])
class TestMessagesThatCannotBeDeleted:
    """Access denied, a queue that refuses each receipt: messages come again every two minutes, for days."""

    def test_are_said_to_be_a_problem_until_they_are_gone(self, make: Make, answer: Any) -> None:
        q = make()
        q.put(job("a"))
        answering(q, "DeleteMessageBatch", answer)
        decided(q.turns, START, cores=10)
        assert "cannot be deleted, they come again" in q.turns.problem
        answering(q, "DeleteMessageBatch", None)
        hidden_over(q)
        q.turns.turn(q.clock.now(), 1)
        assert (q.turns.problem, q.left()) == ("", 0)
        assert [one["job_id"] for one in q.ready()] == ["a"]

    def test_are_recorded_once_when_they_are_no_job(self, make: Make, answer: Any) -> None:
        q = make()
        q.put("no job", job("a"))
        answering(q, "DeleteMessageBatch", answer)
        decided(q.turns, START, cores=10)
        for _ in range(5):
            hidden_over(q)
            q.turns.turn(q.clock.now(), 1)
        assert len(q.pool.store.newest(POOL, 50, "refusal")) == 1
        totals = q.pool.current().head.totals
        assert (totals.refused, totals.submitted, totals.duplicates) == (1, 1, 5)

    def test_start_their_job_once_though_it_ended_long_ago(self, make: Make, answer: Any) -> None:
        q = make(keep_days=0.1)
        q.put(job("a", duration=1, latest_at=START + 5 * DAY_S), job("b", duration=1, latest_at=START + 5 * DAY_S))
        answering(q, "DeleteMessageBatch", answer)
        assert begun(decided(q.turns, START, cores=4)) == ["a"]
        q.pool.cancel("b")
        starts: Counter[str] = Counter()
        for _ in range(20):
            hidden_over(q)
            q.clock.advance(6 * HOUR_S - 121.0)
            starts.update(begun(decided(q.turns, q.clock.now(), cores=10)))
            starts.update(one["job_id"] for one in q.ready())
        assert starts == {"a": 1}


def test_a_receipt_that_is_too_old_leaves_a_job_that_is_known(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    q = make()
    q.put(job("a"))
    write = q.pool.store.write

    def slow(*about: Any, **more: Any) -> bytes:
        q.clock.advance(125.0)
        return write(*about, **more)

    with monkeypatch.context() as patched:
        patched.setattr(q.pool.store, "write", slow)
        q.pool.report(10)
        q.turns.turn(q.clock.now(), 1)
    hidden_over(q)
    q.turns.turn(q.clock.now(), 1)
    assert (stages(q.pool), q.left()) == ({"a": "running"}, 0)
    assert len(q.ready()) == 1


@pytest.mark.parametrize("way", ["submit", "ready"])
def test_a_queue_that_was_deleted_is_a_problem_and_time_goes_on(make: Make, way: str) -> None:
    q = make()
    q.pool.submit(order("a", duration=2))
    q.client.delete_queue(QueueUrl=getattr(q.pool.settings, f"{way}_queue_url"))
    assert begun(decided(q.turns, START, cores=10)) == ["a"]
    assert {"submit": "submit queue cannot be read", "ready": "1 starts were not sent"}[way] in q.turns.problem
    assert stages(q.pool) == {"a": "running" if way == "submit" else "starting"}
    q.clock.advance(HOUR_S)
    assert decided(q.turns, q.clock.now(), cores=10).step == q.pool.current().head.step


def test_a_ready_queue_that_throttles_for_an_hour_gets_every_start_once(make: Make) -> None:
    q = make()
    q.put(*(job(f"j{n}", cores=1, duration=3) for n in range(12)))
    answering(q, "SendMessageBatch", denied("SendMessageBatch", FailureClass.THROTTLE))
    q.pool.report(20)
    for _ in range(12):
        q.turns.turn(q.clock.now(), 1)
        q.clock.advance(300.0)
    answering(q, "SendMessageBatch", None)
    decided(q.turns, q.clock.now(), cores=20)
    assert Counter(one["job_id"] for one in q.ready()) == Counter(f"j{n}" for n in range(12))
    totals = q.pool.current().head.totals
    assert (totals.started, totals.unsent_starts, totals.unsent_core_steps, totals.repeated_starts) == (12, 12, 36, 0)


def test_a_start_that_never_left_is_taken_back_and_never_sent(make: Make) -> None:
    q = make()
    q.put(job("a"), job("b"))
    answering(q, "SendMessageBatch", denied("SendMessageBatch", FailureClass.THROTTLE))
    decided(q.turns, START, cores=10)
    cancelled = q.pool.cancel("a")
    assert (cancelled.core_steps, cancelled.job.start) == (0, None)
    answering(q, "SendMessageBatch", None)
    q.turns.turn(START + 60.0, 1)
    assert (stages(q.pool), [one["job_id"] for one in q.ready()]) == ({"a": "cancelled", "b": "running"}, ["b"])
    assert q.pool.current().head.totals.started == 1


def test_a_start_that_is_taken_back_while_others_are_sent_is_left_out(make: Make) -> None:
    q = make()
    q.put(*(job(f"j{n}", cores=1) for n in range(12)))
    answering(q, "SendMessageBatch", denied("SendMessageBatch", FailureClass.THROTTLE))
    decided(q.turns, START, cores=20)
    last = q.pool.jobs("starting")[-1].job_id  # type: ignore[arg-type]
    others = made(q.pool.ledger, q.clock)

    def meanwhile(parameters: dict[str, Any]) -> Answer:
        answering(q, "SendMessageBatch", None)
        others.cancel(last)
        return q.session.mutate("sqs", "SendMessageBatch", **parameters)

    answering(q, "SendMessageBatch", meanwhile)
    q.turns.turn(START + 60.0, 1)
    assert stages(q.pool)[last] == "cancelled"
    assert {one["job_id"] for one in q.ready()} == {f"j{n}" for n in range(12)} - {last}


@pytest.mark.parametrize("at", range(1, 5))
def test_a_ledger_that_fills_in_the_middle_loses_and_repeats_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    q = make()
    q.put(job("a"), job("b"), "no job")
    q.pool.report(10)
    write, writes = q.pool.store.write, 0

    def filling(*about: Any, **more: Any) -> bytes:
        nonlocal writes
        writes += 1
        if writes >= at:
            raise LedgerUnavailable("the disk is full")
        return write(*about, **more)

    with monkeypatch.context() as patched:
        patched.setattr(q.pool.store, "write", filling)
        if at <= 3:
            with pytest.raises(LedgerUnavailable):
                q.turns.turn(START, 1)
        else:
            q.turns.turn(START, 1)
    hidden_over(q)
    q.turns.turn(q.clock.now(), 1)
    assert stages(q.pool) == {"a": "running", "b": "running"}
    assert sorted(one["job_id"] for one in q.ready()) == ["a", "b"]
    totals = q.pool.current().head.totals
    assert (q.left(), totals.repeated_starts, totals.submitted, totals.refused) == (0, 0, 2, 1)


@pytest.mark.parametrize(
    "body",
    [
        job("a").replace('"a"', '"\\ud800"'),
        job("a", cores=10**400),
        "1" * 10_000,
        *exhaustive(
            job("a").replace('"a"', '"a", "payload": "\\ud800"'),
            job("a").replace('"a"', '"a", "requested_by": "\\ud800"'),
            job("a").replace('"cores"', '"\\ud800"'),
            job("a", latest_at=10**400),
            job("a", payload="é" * 4000),
            job("a", requested_by="x" * 100_000),
            job("a", clamp_late="yes"),
            "null",
        ),
    ],
)
def test_no_message_stops_the_jobs_behind_it(make: Make, body: str) -> None:
    q = make()
    q.put(body, job("b"))
    assert begun(decided(q.turns, START, cores=10)) == ["b"]
    assert (q.left(), q.pool.current().head.totals.refused) == (0, 1)
    assert q.turns.problem == ""


@pytest.mark.parametrize(
    "broken",
    [
        {"Body": "no job", "ReceiptHandle": "r"},
        {"MessageId": "m", "ReceiptHandle": "r"},
        {"MessageId": "m", "Body": None, "ReceiptHandle": "r"},
        {"MessageId": "m", "Body": "\ud800", "ReceiptHandle": "r"},
        {"MessageId": "m", "Body": job("a"), "ReceiptHandle": "r", "Attributes": {"SentTimestamp": "1" * 5000}},
        {"MessageId": "m", "Body": job("a")},
    ],
)
def test_an_answer_of_sqs_that_lacks_a_part_stops_no_step(make: Make, broken: dict[str, Any]) -> None:
    q = make()
    q.pool.submit(order("b"))
    answers = [{"Messages": [broken]}, {}]
    answering(q, "ReceiveMessage", lambda parameters: answers.pop(0))
    assert "b" in begun(decided(q.turns, START, cores=10))
    taken = "a" in stages(q.pool)
    assert taken == (broken.get("Body") == job("a"))
    assert q.pool.current().head.totals.refused == (not taken)


def test_messages_of_one_id_are_told_apart_by_what_they_say(make: Make) -> None:
    q = make()
    same = [{"MessageId": "m", "Body": body, "ReceiptHandle": "r"} for body in ("no job", job("a"))]
    answers = [{"Messages": same}, {}]
    answering(q, "ReceiveMessage", lambda parameters: answers.pop(0))
    assert begun(decided(q.turns, START, cores=10)) == ["a"]


class TestQueuesThatAreSlow:
    """A turn that waits for SQS decides by the time at which it decides."""

    def slow(self, q: Queues, seconds: float) -> None:
        real = type(q.session).mutate

        def received(parameters: dict[str, Any]) -> Answer:
            q.clock.advance(seconds)
            q.pool.report(10)
            return real(q.session, "sqs", "ReceiveMessage", **parameters)

        answering(q, "ReceiveMessage", received)

    def test_leave_a_number_of_cores_that_was_posted_meanwhile(self, make: Make) -> None:
        q = make()
        q.pool.submit(order("a"))
        self.slow(q, 90.0)
        assert begun(decided(q.turns, START)) == ["a"]

    def test_start_no_job_whose_window_ended_meanwhile(self, make: Make) -> None:
        q = make()
        q.pool.submit(order("late", window=0))
        q.pool.submit(order("a", duration=3, window=1))
        self.slow(q, 10.0)
        q.clock.advance(HOUR_S - 5.0)
        step = decided(q.turns, q.clock.now())
        assert (begun(step), step.expired) == (["a"], ("late",))
        assert [one["start_at"] for one in q.ready()] == [START + HOUR_S]


def test_a_shadow_that_fails_holds_no_start_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    q = make(fifo=False)
    turns = turning(q.pool, session=q.session, shadow="fifo")
    assert turns.shadow is not None

    def failing(*about: Any) -> None:
        raise KeyError("a job that is not there")

    monkeypatch.setattr(turns.shadow, "follow", failing)
    q.put(job("a"))
    q.pool.report(10)
    turns.turn(START, 1)
    assert (stages(q.pool), len(q.ready())) == ({"a": "running"}, 1)
    assert "the shadow failed: KeyError" in turns.problem


class TestStartsThatMayArriveTwice:
    """Counted once for each copy that may have been made, and for none that SQS or a pause refused."""

    def unknown(self, q: Queues) -> None:
        q.put(job("a"))
        answering(q, "SendMessageBatch", denied("SendMessageBatch", FailureClass.UNKNOWN_OUTCOME))
        decided(q.turns, START, cores=10)

    @pytest.mark.parametrize("paused", [True, False])
    def test_are_not_counted_while_nothing_is_sent(self, make: Make, ledger: Ledger, paused: bool) -> None:
        q = make(fifo=False)
        self.unknown(q)
        answering(q, "SendMessageBatch", None if paused else denied("SendMessageBatch", FailureClass.THROTTLE))
        if paused:
            ledger.pause("deferral", POOL, Pause(PauseScope.OUT, "ada", "wait", START, START + 330.0))
        for _ in range(5):
            q.clock.advance(60.0)
            q.turns.turn(q.clock.now(), 1)
        assert q.pool.current().head.totals.repeated_starts == 0
        answering(q, "SendMessageBatch", None)
        q.clock.advance(60.0)
        q.turns.turn(q.clock.now(), 1)
        assert (stages(q.pool), q.pool.current().head.totals.repeated_starts) == ({"a": "running"}, 1)
        assert [event.reason.value for event in q.pool.taken_alarms()].count("start_repeated") == 1

    def test_are_counted_though_a_process_ended_while_it_sent(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        q = make(fifo=False)
        self.unknown(q)
        answering(q, "SendMessageBatch", None)
        monkeypatch.setattr(q.turns, "_note_result", lambda *about: None)
        q.turns.turn(START + 60.0, 1)
        turning(q.pool, session=q.session).turn(START + 120.0, 1)
        assert (len(q.ready()), q.pool.current().head.totals.repeated_starts) == (2, 2)


def test_a_start_that_sqs_lost_track_of_may_have_arrived(make: Make) -> None:
    """An error of its own for one message of a call says no more than one for the whole call."""
    q = make(fifo=False)
    q.put(job("a"), job("b"))
    real = type(q.session).mutate

    def half(parameters: dict[str, Any]) -> Answer:
        real(q.session, "sqs", "SendMessageBatch", **parameters)
        codes = (("InternalError", False), ("InvalidMessageContents", True))
        failed = [
            {"Id": one["Id"], "Code": code, "SenderFault": sender}
            for one, (code, sender) in zip(parameters["Entries"], codes, strict=True)
        ]
        return {"Failed": failed}

    answering(q, "SendMessageBatch", half)
    decided(q.turns, START, cores=10)
    with pytest.raises(StateConflict, match="its start is being sent"):
        q.pool.cancel("a")
    assert q.pool.cancel("b").job.start is None
    answering(q, "SendMessageBatch", None)
    q.turns.turn(START + 60.0, 1)
    assert stages(q.pool) == {"a": "running", "b": "cancelled"}
    assert q.pool.current().head.totals.repeated_starts == 1


class TestAJobThatWasSentInTime:
    """Its earliest start passed on the queue, while no agent ran or ten thousand messages lay before it."""

    def test_is_taken_and_its_delay_counts_from_what_it_asked(self, make: Make) -> None:
        q = make()
        q.put(job("a", earliest_at=START + HOUR_S))
        q.clock.advance(3 * HOUR_S)
        (start,) = decided(q.turns, q.clock.now(), cores=10).starts
        assert (start.job_id, start.delay, q.pool.job("a").late) == ("a", 2, True)

    def test_is_refused_where_it_was_sent_late_or_says_so(self, make: Make) -> None:
        q = make()
        q.put(job("strict", earliest_at=START + HOUR_S, clamp_late=False))
        q.clock.advance(3 * HOUR_S)
        q.put(job("late", earliest_at=START + HOUR_S))
        assert begun(decided(q.turns, q.clock.now(), cores=10)) == []
        assert (q.pool.jobs(), q.pool.current().head.totals.refused) == ([], 2)


def test_one_message_twice_in_one_call_is_one_job(make: Make) -> None:
    q = make()
    q.put(job("a"), "no job")
    real = type(q.session).mutate

    def twice(parameters: dict[str, Any]) -> Answer:
        found = real(q.session, "sqs", "ReceiveMessage", **parameters)
        return {**found, "Messages": [one for one in found.get("Messages", ()) for _ in range(2)]}

    answering(q, "ReceiveMessage", twice)
    assert begun(decided(q.turns, START, cores=10)) == ["a"]
    totals = q.pool.current().head.totals
    assert (totals.submitted, totals.duplicates, totals.refused, len(q.ready())) == (1, 1, 1, 1)
    assert len(q.pool.store.newest(POOL, 5, "refusal")) == 1


class TestSettingsThatChanged:
    """At a restart, with jobs in the ledger."""

    @pytest.mark.parametrize(("again", "counted"), [(True, 0), (False, 1)])
    def test_another_ready_queue_does_not_know_what_the_first_has_seen(
        self, make: Make, again: bool, counted: int
    ) -> None:
        q = make()
        q.put(job("a"))
        answering(q, "SendMessageBatch", denied("SendMessageBatch", FailureClass.UNKNOWN_OUTCOME))
        decided(q.turns, START, cores=10)
        answering(q, "SendMessageBatch", None)
        url = q.pool.settings.ready_queue_url
        if not again:
            url = q.client.create_queue(QueueName="new.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        pool = made(q.pool.ledger, q.clock, ready_queue_url=url)
        q.clock.advance(30.0)
        turning(pool, session=q.session).turn(q.clock.now(), 1)
        assert stages(pool) == {"a": "running"}
        assert pool.current().head.totals.repeated_starts == counted

    def test_without_a_ready_queue_workers_read_the_starts(self, make: Make) -> None:
        q = make()
        q.put(job("a"))
        answering(q, "SendMessageBatch", denied("SendMessageBatch", FailureClass.UNKNOWN_OUTCOME))
        decided(q.turns, START, cores=10)
        pool = made(q.pool.ledger, q.clock)
        turning(pool).turn(START + 30.0, 1)
        assert [one.job_id for one in pool.jobs(Stage.RUNNING)] == ["a"]

    def test_a_capacity_of_nothing_lets_jobs_wait_and_expire(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        pool.submit(order("runs", cores=4, duration=3))
        decided(turning(pool), START, cores=4)
        pool.submit(order("waits", window=2))
        pool = made(ledger, clock)
        turns = turning(pool)
        violations = []
        for _ in range(4):
            clock.advance(HOUR_S)
            violations.append(decided(turns, clock.now(), cores=0).violation)
        assert (violations, stages(pool)) == ([4, 4, 0, 0], {"runs": "ended", "waits": "expired"})

    def test_jobs_of_a_pool_that_was_taken_out_are_a_problem(
        self, ledger: Ledger, clock: VirtualClock, tmp_path: Path
    ) -> None:
        made(ledger, clock, name="gone").submit(order("a", window=5))
        turning(made(ledger, clock, name="gone")).turn(START, 1)
        made(ledger, clock, name="over").submit(order("a", window=0))
        settings = Settings.model_validate({"mode": "act", "deferrals": {}, "state_directory": tmp_path})
        part = DeferralPart(Host(ledger, settings, clock))
        told = part.problems()
        assert told["deferral gone"].startswith("1 jobs wait in the ledger")
        assert "put TRIMTAB_DEFERRALS__gone__" in told["deferral gone"]
        clock.advance(6 * HOUR_S)
        assert not any(part.problems().values())


class TestAgentsWhoseClocksDiffer:
    """By ten minutes, with a border between two steps in them, and the lead going to and fro."""

    @pytest.mark.parametrize("seed", [0, *exhaustive(1, 2)])
    def test_start_every_job_once_within_the_capacity(self, ledger: Ledger, clock: VirtualClock, seed: int) -> None:
        draws = Random(seed)
        fast = VirtualClock(START + 600.0)
        pools = [made(ledger, clock), made(ledger, fast)]
        turns = [turning(one) for one in pools]
        starts: Counter[str] = Counter()
        steps: list[int] = []
        for k in range(60):
            for own in (clock, fast):
                own.advance(600.0)
            pools[draws.randrange(2)].submit(order(f"j{k}", 1 + k % 4, 1 + k % 3, latest_at=clock.now() + 3 * HOUR_S))
            pools[0].report(6.0)
            leads = draws.randrange(2)
            turns[leads].turn(pools[leads].clock.now(), 1)
            newest = pools[0].store.newest(POOL, 1, "step")
            if newest and newest[0].step not in steps:  # type: ignore[union-attr]
                steps.append(newest[0].step)  # type: ignore[union-attr]
                starts.update(begun(newest[0]))  # type: ignore[arg-type]
        assert steps == sorted(set(steps))
        assert len(starts) > 5
        assert set(starts.values()) == {1}
        state = pools[0].current()
        assert state.head.totals.violation_steps == 0
        assert all(reserved_cores(state, step) <= 6 for step in range(steps[0], steps[-1] + 3))


def test_payloads_that_grow_on_their_way_stay_below_what_sqs_takes(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    jobs = [pool.submit(order(f"j{n}", payload="\x00" * 4096)).job for n in range(25)]
    started = [replace(one, start=1) for one in jobs]
    for call in in_calls(started):
        assert sum(len(json.dumps(start_message(POOL, one, 3600))) for one in call) <= BYTES_PER_CALL


class TestAClockThatGoesBack:
    """By hours, as after a wrong time was set right."""

    def test_takes_new_numbers_of_cores_and_believes_none_of_the_future(
        self, ledger: Ledger, clock: VirtualClock
    ) -> None:
        pool = made(ledger, VirtualClock(START + 5 * HOUR_S))
        pool.report(100)
        late = made(ledger, clock)
        late.submit(order("a", cores=50))
        turns = turning(late)
        assert decided(turns, START).capacity is None
        late.report(10)
        with pytest.raises(StateConflict):
            late.report(10, at=START - 60.0)
        clock.advance(HOUR_S)
        assert decided(turns, clock.now(), cores=60).capacity == 60

    def test_says_until_when_nothing_is_decided(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        decided(turns, START + 5 * HOUR_S, cores=10)
        turns.turn(START, 1)
        assert turns.problem.startswith("the clock went back: ")
        decided(turns, START + 6 * HOUR_S)
        assert turns.problem == ""


class TestAClockThatIsSetForward:
    """By years, for a minute: jobs that it leaves behind would be gone for good."""

    def test_expires_no_job_and_deletes_no_message_before_that_has_lasted(self, make: Make) -> None:
        q = make()
        q.pool.submit(order("a", window=9, earliest_at=START + HOUR_S))
        decided(q.turns, START, cores=10)
        q.put(job("b"))
        q.clock.step(365 * DAY_S)
        for _ in range(3):
            q.turns.turn(q.clock.now(), 1)
            q.clock.advance(59.0)
        assert "the clock was set forward by 31536000 s" in q.turns.problem
        assert (stages(q.pool), q.left()) == ({"a": "waiting"}, 1)
        q.clock.step(-365 * DAY_S)
        q.clock.advance(HOUR_S)
        assert begun(decided(q.turns, q.clock.now(), cores=10)) == ["a", "b"]
        assert q.turns.problem == ""

    def test_is_gone_by_once_that_has_lasted(self, make: Make) -> None:
        q = make()
        q.pool.submit(order("a", window=9, earliest_at=START + HOUR_S))
        decided(q.turns, START, cores=10)
        q.clock.step(DAY_S)
        q.turns.turn(q.clock.now(), 1)
        q.clock.advance(180.0)
        assert decided(q.turns, q.clock.now(), cores=10).expired == ("a",)
        assert q.turns.problem == ""

    def test_is_gone_by_at_once_where_it_is_a_step_at_most_or_time_has_passed(
        self, ledger: Ledger, clock: VirtualClock
    ) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        decided(turns, START, cores=10)
        clock.step(HOUR_S)
        assert decided(turns, clock.now(), cores=10).step == round(START / HOUR_S) + 1
        clock.advance(5 * DAY_S)
        assert decided(turns, clock.now(), cores=10).skipped == 119


def test_the_next_step_comes_after_the_newest_one_though_the_clock_went_back(
    ledger: Ledger, clock: VirtualClock, tmp_path: Path
) -> None:
    about = {"night": {"policy": "knapsack", "shadow": None}}
    settings = Settings.model_validate({"mode": "act", "deferrals": about, "state_directory": tmp_path})
    part = DeferralPart(Host(ledger, settings, clock))
    decided(turning(made(ledger, clock)), START + 5 * HOUR_S, cores=10)
    assert part.pools["night"].view().next_at == START + 6 * HOUR_S


def test_a_source_that_falls_silent_is_counted_on_for_two_steps(ledger: Ledger, clock: VirtualClock) -> None:
    known: list[Capacity | None] = [Capacity(spare=20.0)]
    pool: DeferralPool = made(ledger, clock, capacity="fleet:web")
    turns = turning(pool, capacity_of=lambda decision, subject: known[0])
    found = []
    for step in range(5):
        found.append(decided(turns, START + step * HOUR_S).capacity)
        known[0] = Capacity(spare=None)
    assert (found[0], found[3], found[4]) == (20, None, None)
    assert all(cores is not None and cores < 20 for cores in found[1:3])
    assert "capacity_missing" in [event.reason.value for event in turns.turn(START + 4 * HOUR_S, 1)]


def test_another_length_of_steps_expires_no_job(make: Make) -> None:
    q = make()
    q.put(job("a", cores=90), job("b"))
    decided(q.turns, START, cores=10)
    shorter = made(q.pool.ledger, q.clock, step_s=900, submit_queue_url=q.submit)
    turns = turning(shorter, session=q.session)
    q.put(job("c"))
    assert turns.turn(START + 60.0, 1) == ()
    assert "counted in steps of 3600 s: set it back" in turns.problem
    with pytest.raises(StateConflict, match="set it back to that, or name another pool"):
        shorter.submit(order("d"))
    assert (stages(q.pool), q.left()) == ({"a": "waiting", "b": "running"}, 1)
    q.turns.turn(START + 120.0, 1)
    assert stages(q.pool) == {"a": "waiting", "b": "running", "c": "waiting"}


@pytest.mark.parametrize("way", ["SUBMIT", "READY"])
def test_two_pools_on_one_queue_are_refused(way: str) -> None:
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs.fifo"
    with pytest.raises(ConfigurationError, match="give each pool a separate queue"):
        load_settings({f"TRIMTAB_DEFERRALS__{pool}__{way}_QUEUE_URL": url for pool in ("day", "night")})
