"""Sends the synthetic VMs' samples to the agent's Graphite listener over TCP, and loses them while a gap is ordered."""

from __future__ import annotations

import graphyte

from domain.clock import Clock
from domain.samples import Sample

BATCH_EVERY_WALL_S = 0.1
QUEUE_SIZE = 100_000


class Reporter:
    """A graphyte sender whose batches can be withheld for a while, as a broken network would."""

    def __init__(self, host: str, port: int, clock: Clock) -> None:
        self._sender = graphyte.Sender(host, port=port, interval=BATCH_EVERY_WALL_S, queue_size=QUEUE_SIZE)
        self._clock = clock
        self._silent_until = 0.0

    def __call__(self, sample: Sample) -> None:
        """Queue one sample, unless a gap is on."""
        if self._clock.now() >= self._silent_until:
            self._sender.send(sample.series.path, float(sample.value), timestamp=sample.at)

    def go_silent(self, seconds: float) -> None:
        """Lose every sample for `seconds` of the clock's time."""
        self._silent_until = self._clock.now() + seconds

    def close(self) -> None:
        """Send what is queued and stop."""
        self._sender.stop()
