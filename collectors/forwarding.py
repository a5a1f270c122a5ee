"""Hands metric lines of subjects that another agent leads on to that agent, so that any agent can be sent any line.

A line is forwarded once: it arrives on the port for other agents' lines, whose sink forwards nothing. One connection to
each agent carries the lines of all senders; a line that begins with SENDER_MARK names the sender of the next lines,
since the store compares the senders of a VM.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple

import structlog

from collectors.base import Refusal, SampleSink
from collectors.intake import ForwardingCounters, IntakeCounters, LineReader
from domain.errors import RejectReason
from domain.samples import MAX_LINE_BYTES, Sample
from domain.subject import Subject

log = structlog.get_logger(__name__)

SENDER_MARK: Final = b"\x01"
MOST_PATHS: Final = 1_000_000
"""Paths whose leader is looked up once; beyond that all are looked up again."""
WAITING_BYTES: Final = 64 * 2**20
"""Bytes that wait for one agent; of more the oldest are dropped and their lines counted."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
CONNECT_TIMEOUT_S: Final = 15.0
"""Longer than a resolver waits for a name server that does not respond (5 s) before it asks the next one."""
NEXT_ADDRESS_S: Final = 0.25
"""A host's next address is tried as well after so long without a connection to the one before."""
LONGEST_SENDER_BYTES: Final = 64
"""Of the name of a sender, the address and port of which are shorter; more is cut."""


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
    Readings with one are taken in a running event loop, that of the listener.
    """

    def __init__(
        self,
        below: SampleSink,
        subject_of: Callable[[bytes], Subject | None],
        elsewhere: Callable[[], Mapping[Subject, Peer]],
    ) -> None:
        self.below, self._subject_of, self._elsewhere = below, subject_of, elsewhere
        self._leaders: Mapping[Subject, Peer] = {}
        self._routes: dict[bytes, Peer | None] = {}
        self._links: dict[Peer, _Link] = {}
        self.counters: dict[str, ForwardingCounters] = {}
        """By the name of the agent."""
        self._again: deque[tuple[str, bytes, int]] = deque()
        """Agent, block and lines: blocks that waited for an agent which leads nothing any more."""
        self._routing: asyncio.Task[None] | None = None
        self._now = 0.0

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Take readings, see `SampleSink`; a forwarded one counts as taken."""
        if not peer:
            return self.below.append(paths, values, times, now, peer)
        leaders, self._now = self._elsewhere(), now
        if leaders is not self._leaders:
            self._adopt(leaders)
        if not leaders:
            return self.below.append(paths, values, times, now, peer)
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
                self._link(leader).send(peer, [b"%b %r %r\n" % line for line in fields])
            else:
                refused += [Refusal(at, RejectReason.LED_ELSEWHERE) for at, way in enumerate(ways) if way is leader]
        here = [way is None for way in ways]
        if all(here):
            return self.below.append(paths, values, times, now, peer)
        positions = list(compress(range(len(paths)), here))
        if positions:
            below = self.below.append(
                list(compress(paths, here)), list(compress(values, here)), list(compress(times, here)), now, peer
            )
            refused += [Refusal(positions[at], reason) for at, reason in below]
        return refused

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Take readings of this agent's collectors."""
        return self.below.append_samples(samples, now)

    def close(self) -> None:
        """Close the connections; lines that wait for one are dropped and counted."""
        for peer, link in self._links.items():
            self._again.extend((peer.name, *block) for block in link.close())
        self._links.clear()
        if self._routing is not None:
            self._routing.cancel()
        for name, _, lines in self._again:
            self.counters[name].dropped += lines
        self._again.clear()

    def _route(self, path: bytes) -> Peer | None:
        if path not in self._routes:
            if len(self._routes) >= MOST_PATHS:
                self._routes.clear()
            # At the beginning of a line the next agent would read the mark as the name of another sender.
            subject = None if path.startswith(SENDER_MARK) else self._subject_of(path)
            self._routes[path] = None if subject is None else self._leaders.get(subject)
        return self._routes[path]

    def _link(self, peer: Peer) -> _Link:
        if peer not in self._links:
            self._links[peer] = _Link(peer, self.counters.setdefault(peer.name, ForwardingCounters()))
        return self._links[peer]

    def _adopt(self, leaders: Mapping[Subject, Peer]) -> None:
        self._leaders, self._routes = leaders, {}
        for peer in self._links.keys() - set(leaders.values()):
            self._again.extend((peer.name, *block) for block in self._links.pop(peer).close())
        if self._again and (self._routing is None or self._routing.done()):
            self._routing = asyncio.get_running_loop().create_task(self._route_again())

    async def _route_again(self) -> None:
        """Route blocks to the leaders of now; between two of them the listener takes other lines."""
        reader = RelayReader(self, IntakeCounters(), lambda: self._now)
        while self._again:
            # Taken out first: leaders may change again meanwhile.
            _, block, _ = self._again.popleft()
            reader.feed(block)
            await asyncio.sleep(0)


class _Link(asyncio.Protocol):
    """The connection to one agent, opened again after a pause when it breaks; all in the listener's event loop.

    One that the agent closed as idle is opened again for the next line.
    """

    def __init__(self, peer: Peer, counters: ForwardingCounters) -> None:
        self._peer, self._counters = peer, counters
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._waiting_bytes = 0
        self._pause_s = FIRST_PAUSE_S
        self._opened_at = 0.0
        self._is_full = False
        self._closed = False
        self._connect()

    def send(self, sender: str, lines: Sequence[bytes]) -> None:
        """Send lines of a sender; they wait while there is no connection, or while it is slow."""
        block = SENDER_MARK + sender.encode() + b"\n" + b"".join(lines)
        there = self._transport
        if there is None and self._attempt.done():
            self._connect()
        if there is not None and not (there.is_closing() or self._waiting or self._is_full):
            there.write(block)
            self._counters.forwarded += len(lines)
            return
        self._waiting.append((block, len(lines)))
        self._waiting_bytes += len(block)
        while self._waiting_bytes > WAITING_BYTES:
            self._counters.dropped += self._take()[1]

    def close(self) -> Sequence[tuple[bytes, int]]:
        """Close the connection once it has sent its bytes; return the blocks that wait for one, with their lines."""
        self._closed = True
        self._attempt.cancel()
        if self._transport is not None:
            self._transport.close()
        # A connection that is closing still resumes: nothing may be sent twice.
        waiting, self._waiting = tuple(self._waiting), deque()
        return waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the lines that wait."""
        assert isinstance(transport, asyncio.WriteTransport)
        if self._closed:
            transport.close()
            return
        self._transport, self._opened_at, self._is_full = transport, self._loop.time(), False
        self._flush(transport)

    def pause_writing(self) -> None:
        """Let lines wait here: those given to a connection do not go to the next leader."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Send the lines that wait."""
        self._is_full = False
        if self._transport is not None:
            self._flush(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Open it again: at once after one that lasted, else after a pause, as the agent may refuse this sender."""
        self._transport = None
        if self._closed:
            return
        lasted = self._loop.time() - self._opened_at > LONGEST_PAUSE_S
        if lasted:
            self._pause_s = FIRST_PAUSE_S
            if exc is None and not self._waiting:
                return
        log.warning("forwarding_connection_lost", agent=self._peer.name, detail=str(exc or "closed by the agent"))
        self._connect(pauses=not lasted)

    def _flush(self, transport: asyncio.WriteTransport) -> None:
        while self._waiting and not self._is_full:
            block, lines = self._take()
            transport.write(block)
            self._counters.forwarded += lines

    def _take(self) -> tuple[bytes, int]:
        block, lines = self._waiting.popleft()
        self._waiting_bytes -= len(block)
        return block, lines

    def _connect(self, *, pauses: bool = False) -> None:
        self._attempt = self._loop.create_task(self._try(pauses))

    async def _try(self, pauses: bool) -> None:
        while not self._closed:
            if pauses:
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(2.0 * self._pause_s, LONGEST_PAUSE_S)
            pauses = True
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    host, port = self._peer.host, self._peer.port
                    await self._loop.create_connection(lambda: self, host, port, happy_eyeballs_delay=NEXT_ADDRESS_S)
                return
            except (OSError, UnicodeError) as error:
                # UnicodeError: a host name that cannot be encoded for a look-up.
                if self._pause_s == FIRST_PAUSE_S:
                    at = f"{self._peer.host}:{self._peer.port}"
                    why = f"no connection in {CONNECT_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else str(error)
                    log.warning("agent_unreachable", agent=self._peer.name, at=at, detail=why)


class RelayReader:
    """Reads the connection of another agent: lines `path value timestamp` after the name of their sender.

    It holds at most one unfinished line. Lines before the first name are of the connection's own peer.
    """

    def __init__(self, sink: SampleSink, counters: IntakeCounters, now: Callable[[], float], peer: str = "") -> None:
        self.peer = peer
        self._lines = LineReader(sink, counters, now)
        self._tail = b""

    def feed(self, chunk: bytes) -> int:
        """Take the next bytes; return how many lines of them the sink took."""
        chunk = self._tail + chunk
        end = chunk.rfind(b"\n") + 1
        self._tail = chunk[end:]
        first, *others = (b"\n" + chunk[:end]).split(b"\n" + SENDER_MARK)
        taken = self._of_peer(first[1:])
        for part in others:
            sender, _, lines = part.partition(b"\n")
            self.peer = sender[:LONGEST_SENDER_BYTES].decode("utf-8", "replace")
            taken += self._of_peer(lines)
        if len(self._tail) > MAX_LINE_BYTES:
            # Counted there, and skipped up to its newline.
            self._lines.feed(self._tail)
            self._tail = b""
        return taken

    def close(self) -> None:
        """End the stream; an unfinished line is refused."""
        self._lines.feed(self._tail)
        self._lines.close()
        self._tail = b""

    def _of_peer(self, lines: bytes) -> int:
        self._lines.peer = self.peer
        return self._lines.feed(lines if lines.endswith(b"\n") else lines + b"\n") if lines else 0
