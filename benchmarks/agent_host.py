"""The agent's host in benchmarks: its clock, which may be wrong, the way of readings into it, and its view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agent.autoscaling.decision import AutoscalingPart
from agent.autoscaling.loop import Loop
from agent.autoscaling.snapshot.series import SeriesStore
from agent.kernel.decision import Host
from agent.kernel.parts import parts_of
from agent.ledger import Ledger
from agent.settings import Settings
from agent.view.board import ServiceBoard
from agent.view.view import AgentParts, AgentView
from collectors.base import Refusal, SampleSink
from collectors.intake import IntakeCounters
from domain.clock import Clock, VirtualClock
from domain.samples import Sample


class HostClock:
    """The clock of the agent's host: true time plus what it is wrong by."""

    def __init__(self, true: VirtualClock) -> None:
        self._true = true
        self.error_s = 0.0

    def now(self) -> float:
        """Return what the host takes for the time."""
        return self._true.now() + self.error_s

    def monotonic(self) -> float:
        """Return seconds that have passed."""
        return self._true.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._true.sleep(seconds)


class Feed:
    """The way of readings to the store: what is silent does not arrive, and arrival is stamped by the host's clock."""

    def __init__(self, store: SampleSink, clock: HostClock) -> None:
        self._store, self._clock = store, clock
        self.silent: set[bytes] = set()
        self.accepted = self.refused = self.withheld = 0

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Pass on what is not silent. What the store refuses is counted, and is no error here: clocks are wrong."""
        if self.silent:
            kept = [k for k, path in enumerate(paths) if self.silent.isdisjoint(path.split(b"."))]
            self.withheld += len(paths) - len(kept)
            paths, values, times = [paths[k] for k in kept], [values[k] for k in kept], [times[k] for k in kept]
        refused = len(self._store.append(paths, values, times, self._clock.now(), peer))
        self.refused += refused
        self.accepted += len(paths) - refused
        return ()

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Pass on readings whose series is known."""
        return self._store.append_samples(samples, self._clock.now())


def agent_view(
    ledger: Ledger,
    loop: Loop,
    store: SeriesStore,
    clock: Clock,
    settings: Settings,
    intake: IntakeCounters,
    aws_calls: Callable[[], Mapping[tuple[str, str], int]],
) -> AgentView:
    """Return the view of an agent with this loop."""
    parts = parts_of(Host(ledger, settings, clock))
    for part in parts:
        if isinstance(part, AutoscalingPart):
            part.attach(loop, store)
    return AgentView(
        AgentParts(
            settings=settings,
            board=ServiceBoard(clock.now()),
            ledger=ledger,
            now=clock.now,
            monotonic=clock.monotonic,
            parts=parts,
            collectors=dict,
            intake=lambda: intake,
            aws_calls=aws_calls,
        )
    )
