"""Hands metric lines of subjects that another agent leads on to that agent, so that any agent can be sent any line.

A line is forwarded once: it arrives on the port for other agents' lines, whose sink forwards nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple

from collectors.base import Refusal, SampleSink
from collectors.intake import IntakeCounters, LineReader
from collectors.sender import GraphiteSender, SenderCounters, SenderOptions
from domain.errors import RejectReason
from domain.samples import Sample
from domain.subject import Subject

MOST_PATHS: Final = 1_000_000
"""Paths whose leader is looked up once; beyond that all are looked up again."""
WAITING_LINES: Final = 500_000
"""Lines that wait for one agent; of more the oldest are dropped and counted."""
BATCH_LINES: Final = 5_000


class Peer(NamedTuple):
    """Another agent and the address of its port for forwarded lines; `port` 0: it takes none."""

    name: str
    host: str = ""
    port: int = 0


class ForwardingSink:
    """Sends readings of subjects that another agent leads to that agent, and hands the others to the sink below.

    subject_of: the subject of a path, None where no part of this agent knows one; such a reading goes below.
    elsewhere: the leaders of the subjects that other agents lead; another mapping once one has changed.
    A reading whose leader takes no forwarded lines is refused as LED_ELSEWHERE. Lines that wait for an agent which
    leads nothing any more are routed again. Readings without a peer, which this agent measured, go below.
    """

    def __init__(
        self,
        below: SampleSink,
        subject_of: Callable[[bytes], Subject | None],
        elsewhere: Callable[[], Mapping[Subject, Peer]],
    ) -> None:
        self._below, self._subject_of, self._elsewhere = below, subject_of, elsewhere
        self._leaders: Mapping[Subject, Peer] = {}
        self._routes: dict[bytes, Peer | None] = {}
        self._senders: dict[Peer, GraphiteSender] = {}

    @property
    def counters(self) -> Mapping[str, SenderCounters]:
        """Counters of forwarded lines by the name of the agent, of agents that lead now."""
        return {peer.name: sender.counters for peer, sender in tuple(self._senders.items())}

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Take readings, see `SampleSink`; a forwarded one counts as taken."""
        leaders = self._elsewhere()
        if leaders is not self._leaders:
            self._adopt(leaders, now)
        if not leaders or not peer:
            return self._below.append(paths, values, times, now, peer)
        routes = self._routes
        try:
            ways = [routes[path] for path in paths]
        except KeyError:
            ways = [self._route(path) for path in paths]
        refused: list[Refusal] = []
        for leader in {way for way in ways if way is not None}:
            if leader.port:
                there = [way is leader for way in ways]
                fields = zip(compress(paths, there), compress(values, there), compress(times, there), strict=True)
                self._sender(leader).send_lines([b"%b %r %r\n" % line for line in fields])
            else:
                refused += [Refusal(at, RejectReason.LED_ELSEWHERE) for at, way in enumerate(ways) if way is leader]
        here = [way is None for way in ways]
        if all(here):
            return self._below.append(paths, values, times, now, peer)
        positions = list(compress(range(len(paths)), here))
        if positions:
            below = self._below.append(
                list(compress(paths, here)), list(compress(values, here)), list(compress(times, here)), now, peer
            )
            refused += [Refusal(positions[at], reason) for at, reason in below]
        return refused

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Take readings of this agent's collectors."""
        return self._below.append_samples(samples, now)

    def close(self) -> None:
        """Send the lines that wait, for a short time."""
        for sender in self._senders.values():
            sender.close(timeout_s=1.0)

    def _route(self, path: bytes) -> Peer | None:
        if path not in self._routes:
            if len(self._routes) >= MOST_PATHS:
                self._routes.clear()
            subject = self._subject_of(path)
            self._routes[path] = None if subject is None else self._leaders.get(subject)
        return self._routes[path]

    def _sender(self, peer: Peer) -> GraphiteSender:
        if peer not in self._senders:
            options = SenderOptions(
                peer.host, peer.port, capacity=WAITING_LINES, batch_lines=BATCH_LINES, longest_pause_s=5.0
            )
            self._senders[peer] = GraphiteSender(options)
        return self._senders[peer]

    def _adopt(self, leaders: Mapping[Subject, Peer], now: float) -> None:
        self._leaders, self._routes = leaders, {}
        for peer in self._senders.keys() - set(leaders.values()):
            waiting = b"".join(self._senders.pop(peer).abandon())
            if waiting:
                LineReader(self, IntakeCounters(), lambda: now, peer.name).whole(waiting)
