"""Polls each collector in its own interval and thread, so that one that hangs delays no other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread

import structlog

from collectors.base import Collector, CollectorHealth, Refusal, SampleSink
from domain.clock import Clock
from domain.samples import Sample

log = structlog.get_logger(__name__)

MAX_ERROR_CHARACTERS = 200
_STOP_TIMEOUT_S = 2.0
_SHORTEST_WAIT_S = 0.01


@dataclass(slots=True)
class _Turn:
    """One collector's place in the round: when it is due (monotonic seconds) and the thread that runs it now."""

    collector: Collector
    health: CollectorHealth = field(default_factory=CollectorHealth)
    due_at: float = float("-inf")
    running: Thread | None = None
    began_at: float = 0.0
    overrun: bool = False


class Poller:
    """Polls collectors on a clock and hands their samples to the sink.

    A collector whose last collection still runs is skipped (and counted), never started twice; beyond its timeout the
    collection counts as an overrun. Threads are daemons: a collector that hangs keeps neither the loop nor the process.
    """

    def __init__(self, collectors: Iterable[Collector], sink: SampleSink, clock: Clock) -> None:
        self._turns = [_Turn(collector) for collector in collectors]
        self._sink = sink
        self._clock = clock
        self._stopping = Event()
        self._thread: Thread | None = None

    @property
    def health(self) -> Mapping[str, CollectorHealth]:
        """Each collector's health, by its name."""
        return {turn.collector.name: turn.health for turn in self._turns}

    def replace(self, collectors: Iterable[Collector]) -> None:
        """Poll these from now on; one that was polled under the same name before keeps its health."""
        health, before = self.health, self._turns
        self._turns = [_Turn(each, health.get(each.name, CollectorHealth())) for each in collectors]
        _close(before)

    def start(self) -> None:
        """Begin polling in a thread; every collector is polled at once and then in its interval."""
        self._stopping.clear()
        self._thread = Thread(target=self._run, name="poller", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling; a collection under way is given a moment and then left behind."""
        self._stopping.set()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for thread in (self._thread, *(turn.running for turn in self._turns)):
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        _close(self._turns)

    def poll(self) -> None:
        """Start every collection that is due."""
        for turn in self._turns:
            self._poll_one(turn)

    def poll_and_wait(self, timeout_s: float) -> None:
        """Start what is due and wait until it has ended, at most `timeout_s` of wall time."""
        self.poll()
        deadline = time.monotonic() + timeout_s
        for turn in self._turns:
            if turn.running is not None:
                turn.running.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._wait_for_next()

    def _wait_for_next(self) -> None:
        due_in = min((turn.due_at for turn in self._turns), default=float("inf")) - self._clock.monotonic()
        # The clock may run many times as fast as the wall; a short nap keeps to it without knowing its speed.
        self._stopping.wait(_SHORTEST_WAIT_S if due_in < 1.0 else min(0.25, _SHORTEST_WAIT_S * due_in))

    def _poll_one(self, turn: _Turn) -> None:
        monotonic = self._clock.monotonic()
        if turn.running is not None and turn.running.is_alive():
            if not turn.overrun and monotonic - turn.began_at > turn.collector.timeout_s:
                turn.overrun = True
                turn.health.overruns += 1
                log.warning("collector_overran", collector=turn.collector.name, timeout_s=turn.collector.timeout_s)
            if monotonic >= turn.due_at:
                turn.health.skipped += 1
                turn.due_at = monotonic + turn.collector.interval_s
            return
        if monotonic < turn.due_at:
            return
        turn.due_at = _next_due(turn.due_at, monotonic, turn.collector.interval_s)
        turn.began_at, turn.overrun = monotonic, False
        turn.running = Thread(target=self._collect, args=(turn,), name=f"collector {turn.collector.name}", daemon=True)
        turn.running.start()

    def _collect(self, turn: _Turn) -> None:
        health, began = turn.health, self._clock.monotonic()
        samples: list[Sample] = []
        refused: Sequence[Refusal] = ()
        try:
            now = self._clock.now()
            try:
                for sample in turn.collector.collect(now):
                    samples.append(sample)  # noqa: PERF402 - extend need not keep what came before a failure
            finally:
                # What came before a failure was measured.
                refused = self._sink.append_samples(samples, self._clock.now()) if samples else ()
        except Exception as error:
            health.failures += 1
            first_in_a_row = not health.last_error
            health.last_error = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]
            if first_in_a_row:
                log.warning("collector_failed", collector=turn.collector.name, error=health.last_error)
        else:
            health.successes += 1
            health.last_success_at = now
            if health.last_error:
                log.info("collector_recovered", collector=turn.collector.name)
            health.last_error = ""
        finally:
            health.refused += len(refused)
            health.last_duration_s = self._clock.monotonic() - began


def _close(turns: Iterable[_Turn]) -> None:
    for turn in turns:
        close = getattr(turn.collector, "close", None)
        if callable(close) and (turn.running is None or not turn.running.is_alive()):
            with contextlib.suppress(Exception):
                close()


def _next_due(due_at: float, monotonic: float, interval_s: float) -> float:
    """Return the next turn on the collector's own beat, or a whole interval from now when it fell behind."""
    following = due_at + interval_s
    return following if following > monotonic else monotonic + interval_s
