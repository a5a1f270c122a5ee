"""The poller polls each collector in its interval; one that fails or hangs is counted and delays no other."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.base import CollectorHealth
from collectors.polling import Poller
from domain.clock import ScaledClock, VirtualClock
from domain.samples import QueueMetric, QueueSeries, Sample

T0 = 1_795_209_000.0
WAITING = QueueSeries("web", QueueMetric.WAITING)


@dataclass
class Scripted:
    """A collector that runs what it is given; `asked` holds the times of its collections."""

    name: str
    interval_s: float = 60.0
    timeout_s: float = 5.0
    work: Callable[[float], Iterable[Sample]] = lambda now: (Sample(WAITING, 1.0, now),)
    asked: list[float] = field(default_factory=list)

    def collect(self, now: float) -> Iterable[Sample]:
        self.asked.append(now)
        return self.work(now)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def poller(clock: VirtualClock, *collectors: Scripted) -> tuple[Poller, SeriesStore]:
    store = SeriesStore()
    return Poller(collectors, store, clock), store


def hang(release: threading.Event) -> Callable[[float], Sequence[Sample]]:
    def work(now: float) -> Sequence[Sample]:
        release.wait(30.0)
        return ()

    return work


def test_each_collector_is_asked_at_once_and_then_in_its_interval() -> None:
    clock = VirtualClock(T0)
    fast, slow = Scripted("fast", 10.0), Scripted("slow", 30.0)
    polling, store = poller(clock, fast, slow)
    for _ in range(31):
        polling.poll_and_wait(60.0)
        clock.advance(1.0)
    assert [at - T0 for at in fast.asked] == [0.0, 10.0, 20.0, 30.0]
    assert [at - T0 for at in slow.asked] == [0.0, 30.0]
    assert store.newest(_row(store)) == T0 + 30
    assert polling.health["fast"] == CollectorHealth(successes=4, last_success_at=T0 + 30, last_duration_s=0.0)


def test_a_collector_that_fell_behind_is_asked_once_not_once_per_missed_turn() -> None:
    clock = VirtualClock(T0)
    only = Scripted("only", 10.0)
    polling, _ = poller(clock, only)
    polling.poll_and_wait(60.0)
    clock.advance(100.0)
    for _ in range(3):
        polling.poll_and_wait(60.0)
    assert [at - T0 for at in only.asked] == [0.0, 100.0]


def test_a_failing_collector_is_counted_and_asked_again() -> None:
    clock = VirtualClock(T0)

    def fail(now: float) -> Sequence[Sample]:
        if now < T0 + 20:
            raise ConnectionError("no route to host " + "x" * 500)
        return (Sample(WAITING, 1.0, now),)

    failing, healthy = Scripted("failing", 10.0, work=fail), Scripted("healthy", 10.0)
    polling, _ = poller(clock, failing, healthy)
    polling.poll_and_wait(60.0)
    health = polling.health["failing"]
    assert (health.failures, health.last_success_at) == (1, None)
    assert health.last_error.startswith("ConnectionError: no route to host")
    assert len(health.last_error) == 200
    for _ in range(2):
        clock.advance(10.0)
        polling.poll_and_wait(60.0)
    assert (health.failures, health.successes, health.last_error) == (2, 1, "")
    assert polling.health["healthy"].successes == 3


def test_a_hanging_collector_is_skipped_and_delays_no_other(release: threading.Event) -> None:
    clock = VirtualClock(T0)
    stuck, healthy = Scripted("stuck", 10.0, timeout_s=15.0, work=hang(release)), Scripted("healthy", 10.0)
    polling, _ = poller(clock, stuck, healthy)
    for _ in range(4):
        polling.poll()
        for thread in [t for t in threading.enumerate() if t.name == "collector healthy"]:
            thread.join(60.0)
        clock.advance(10.0)
    polling.poll()
    assert len(stuck.asked) == 1
    assert len(healthy.asked) == 5
    health = polling.health["stuck"]
    assert (health.overruns, health.skipped, health.successes) == (1, 4, 0)
    release.set()
    polling.poll_and_wait(60.0)
    clock.advance(10.0)
    polling.poll_and_wait(60.0)
    assert (health.successes, len(stuck.asked)) == (2, 2)


def test_samples_that_the_sink_refuses_are_counted() -> None:
    clock = VirtualClock(T0)
    wrong = Scripted("wrong", work=lambda now: (Sample(WAITING, -1.0, now), Sample(WAITING, 2.0, now - 9999)))
    polling, store = poller(clock, wrong)
    polling.poll_and_wait(60.0)
    assert (polling.health["wrong"].refused, polling.health["wrong"].successes) == (2, 1)
    assert len(store) == 0


def test_a_started_poller_runs_by_itself_on_a_fast_clock_and_stops_with_one_hanging(release: threading.Event) -> None:
    clock = ScaledClock(T0, time.time(), 600.0)
    enough = threading.Event()
    counted = Scripted("counted", 10.0)

    def count(now: float) -> Sequence[Sample]:
        if len(counted.asked) >= 5:
            enough.set()
        return ()

    counted.work = count
    polling = Poller([counted, Scripted("stuck", 10.0, work=hang(release))], SeriesStore(), clock)
    polling.start()
    assert enough.wait(60.0)
    release.set()
    polling.stop()
    asked = len(counted.asked)
    time.sleep(0.1)
    assert len(counted.asked) == asked


def _row(store: SeriesStore) -> np.ndarray:
    return np.array([store.queue_row("web", QueueMetric.WAITING)])


def test_what_a_collector_yields_before_it_fails_is_taken() -> None:
    def work(now: float) -> Iterator[Sample]:
        yield Sample(WAITING, 4.0, now)
        raise RuntimeError("the second query failed")

    collector = Scripted("half", work=work)
    polling, store = poller(VirtualClock(T0), collector)
    polling.poll_and_wait(60.0)
    health = polling.health["half"]
    assert (health.successes, health.failures) == (0, 1)
    assert health.last_error == "RuntimeError: the second query failed"
    assert store.readings(store.queue_row("web", QueueMetric.WAITING), T0) == [(T0, 4.0)]


def test_connections_of_collectors_are_closed_when_they_are_replaced_and_at_the_stop() -> None:
    closed: list[str] = []

    class Connected(Scripted):
        def close(self) -> None:
            closed.append(self.name)

    polling, _ = poller(VirtualClock(T0), Connected("first"))
    polling.replace([Connected("second")])
    assert closed == ["first"]
    polling.stop()
    assert closed == ["first", "second"]
