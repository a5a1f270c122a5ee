"""Sends readings to Graphite from a thread of its own; the caller never waits and the buffer never outgrows its bound.

graphyte writes the lines and the socket. Around it: numpy scalars are taken, nan and infinity refused, one connection
carries a batch instead of one line, a batch that failed is kept, and stopping cannot fail.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Condition, Thread
from typing import SupportsFloat

import graphyte
import structlog

from domain.samples import PREFIX, QUEUE_SEGMENT, QueueSeries, Sample, Series, VmSeries

log = structlog.get_logger(__name__)

DATAGRAM_BYTES = 1400
"""Lines of one datagram: below what an Ethernet frame carries, so that it is not cut into parts."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """The address to send to, and the bounds of the buffer.

    timeout_s: to connect and to write one batch. capacity: lines kept while they cannot be sent, beside the batch
    under way. first_pause_s, longest_pause_s: the wait after a failure, doubled each time; `seed` varies it by half, so
    that a thousand VMs do not come back in the same second.
    """

    host: str
    port: int
    protocol: str = "tcp"
    tagged: bool = False
    timeout_s: float = 5.0
    capacity: int = 10_000
    batch_lines: int = 500
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0
    seed: int = 0


@dataclass(slots=True)
class SenderCounters:
    """Counters of readings since the start.

    sent: written to a connection without an error. dropped: given up, the buffer being full or the sender closed.
    refused: no finite number, or no name for a series. batches, failures: attempts to send that went well, and not.
    """

    sent: int = 0
    dropped: int = 0
    refused: int = 0
    batches: int = 0
    failures: int = 0
    last_error: str = ""


class GraphiteSender:
    """Takes readings from any thread and sends them in the background, the oldest first.

    While Graphite cannot be reached readings wait, at most `capacity` of them; beyond that the oldest are dropped and
    counted. TCP reports a lost batch only when the connection breaks while it is written.
    """

    def __init__(self, options: SenderOptions) -> None:
        self.counters = SenderCounters()
        self._options = options
        self._wire = graphyte.Sender(
            options.host,
            port=options.port,
            protocol=options.protocol,
            timeout=options.timeout_s,
            raise_send_errors=True,
        )
        self._lines: deque[bytes] = deque()
        self._changed = Condition()
        self._closing_at: float | None = None
        self._abandoned = False
        self._dice = random.Random(options.seed)
        self._thread = Thread(target=self._run, name=f"graphite-sender {options.host}:{options.port}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Lines that wait to be sent."""
        return len(self._lines)

    def send(self, name: str, value: SupportsFloat, at: float, tags: Mapping[str, str] | None = None) -> bool:
        """Queue one reading (`at` in epoch seconds) and return whether it was taken; never waits, never raises."""
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
            if not (math.isfinite(number) and math.isfinite(at)):
                raise ValueError
            line: bytes = self._wire.build_message(name, number, at, tags=dict(tags or {}))
        except (TypeError, ValueError, OverflowError):
            with self._changed:
                self.counters.refused += 1
            return False
        with self._changed:
            if self._closing_at is not None:
                self.counters.dropped += 1
                return False
            self._lines.append(line)
            self._drop_oldest()
            self._changed.notify()
        return True

    def send_samples(self, samples: Iterable[Sample]) -> None:
        """Queue samples by the dotted path of their series, or tagged, by the options."""
        for sample in samples:
            if self._options.tagged:
                self.send(f"{PREFIX}.{sample.series.metric}", sample.value, sample.at, series_tags(sample.series))
            else:
                self.send(sample.series.path, sample.value, sample.at)

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what waits, for at most `timeout_s`; what is left then is dropped and counted."""
        with self._changed:
            if self._closing_at is None:
                self._closing_at = time.monotonic() + timeout_s
                self._changed.notify()
        self._thread.join(timeout_s)
        with self._changed:
            # A batch may still be under way; it counts when its fate is known.
            self._abandoned = True
            self.counters.dropped += len(self._lines)
            self._lines.clear()

    def _drop_oldest(self) -> None:
        while len(self._lines) > self._options.capacity:
            self._lines.popleft()
            self.counters.dropped += 1

    def _run(self) -> None:
        pause_s = self._options.first_pause_s
        while (batch := self._next_batch()) is not None:
            try:
                self._wire.send_socket(b"".join(batch))
            except OSError as error:
                self._failed(batch, error)
                with self._changed:
                    if self._closing_at is not None:
                        return
                    closing = self._changed.wait_for(
                        lambda: self._closing_at is not None, pause_s * self._dice.uniform(0.5, 1.0)
                    )
                pause_s = self._options.first_pause_s if closing else min(2.0 * pause_s, self._options.longest_pause_s)
            else:
                self._succeeded(len(batch))
                pause_s = self._options.first_pause_s

    def _next_batch(self) -> list[bytes] | None:
        """Wait for lines and take the oldest; None when the sender is closed and has sent them or has no time left."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closing_at is not None)
            if not self._lines or (self._closing_at is not None and time.monotonic() >= self._closing_at):
                return None
            return list(self._take())

    def _take(self) -> Iterator[bytes]:
        room = DATAGRAM_BYTES if self._options.protocol == "udp" else math.inf
        for position in range(self._options.batch_lines):
            if not self._lines or (position and len(self._lines[0]) > room):
                return
            room -= len(self._lines[0])
            yield self._lines.popleft()

    def _failed(self, batch: list[bytes], error: OSError) -> None:
        counters = self.counters
        with self._changed:
            counters.failures += 1
            first = not counters.last_error
            counters.last_error = f"{type(error).__name__}: {error}"[:200]
            if self._abandoned:
                counters.dropped += len(batch)
            else:
                self._lines.extendleft(reversed(batch))
                self._drop_oldest()
        if first:
            place = f"{self._options.host}:{self._options.port}"
            log.warning("graphite_unreachable", at=place, error=counters.last_error, kept=len(self._lines))

    def _succeeded(self, lines: int) -> None:
        counters = self.counters
        with self._changed:
            counters.sent += lines
            counters.batches += 1
            recovered, counters.last_error = bool(counters.last_error), ""
        if recovered:
            log.info("graphite_reachable", failures=counters.failures, dropped=counters.dropped)


def series_tags(series: Series) -> dict[str, str]:
    """Return the tags that name a series in tagged form."""
    if isinstance(series, VmSeries):
        return {"fleet": series.fleet, "group": series.group, "vm": series.vm}
    return {"fleet": series.fleet} | ({QUEUE_SEGMENT: "yes"} if isinstance(series, QueueSeries) else {})
