"""The protocols of a collector and of the sink of its samples, and the health of a collector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from domain.errors import RejectReason
from domain.samples import Sample


class Refusal(NamedTuple):
    """A reading that was not taken: its position in the batch, and why."""

    position: int
    reason: RejectReason


def sender_at(address: str, port: int) -> str:
    """Return the name of a sender: `10.0.0.7:40112`, `[::1]:40112`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def address_of(sender: str) -> str:
    """Return the address of a sender, which all its connections share."""
    return sender.rpartition(":")[0] or sender


class SampleSink(Protocol):
    """Takes readings from any thread; what it refuses it names, and it never raises for a bad reading."""

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Take readings by Graphite path, value and time (epoch seconds), sequences of one length.

        peer: the sender's address and port (see `sender_at`), "" for what this agent measures or fetches itself.
        """
        ...

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Take readings whose series is already known to be well formed."""
        ...


class Collector(Protocol):
    """A source that is polled for samples once in `interval_s`; entry point group `trimtab.collectors`.

    `collect` may block for as long as its own timeouts allow (`timeout_s` in all) and may raise: a collector that hangs
    or fails neither delays nor stops another.
    """

    @property
    def name(self) -> str:
        """A short name, unique among the collectors, used in counters and logs."""
        ...

    @property
    def interval_s(self) -> float:
        """Seconds from the start of one collection to the start of the next."""
        ...

    @property
    def timeout_s(self) -> float:
        """After so many seconds a running collection counts as overrun."""
        ...

    def collect(self, now: float) -> Iterable[Sample]:
        """Return what can be measured now, stamped `now` or earlier (seconds since the epoch).

        A generator may fail after some samples: those are taken, and the collection counts as a failure.
        """
        ...


@dataclass(slots=True)
class CollectorHealth:
    """The health of a collector: counts, the last success, the last duration in seconds, the last error's text.

    overruns: collections that lasted beyond the timeout. skipped: turns left out because the one before still ran.
    refused: samples that the sink did not take.
    """

    successes: int = 0
    failures: int = 0
    overruns: int = 0
    skipped: int = 0
    refused: int = 0
    last_success_at: float | None = None
    last_duration_s: float | None = None
    last_error: str = ""
