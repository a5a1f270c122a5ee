"""The Graphite plaintext listener: a TCP and UDP server in its own thread with bounds on senders."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from queue import Empty, SimpleQueue
from threading import Thread

import structlog

from collectors.base import SampleSink, sender_at
from collectors.forwarding import ForwardingSink, RelayReader
from collectors.intake import IntakeCounters, LineReader

log = structlog.get_logger(__name__)

UDP_BUFFER_BYTES = 4 * 2**20
"""Requested from the kernel, which may grant less: of a burst that does not fit the rest is dropped uncounted."""
OTHER_FILES = 512
"""File descriptors left to the ledger, to AWS and to HTTP: senders must not take those away."""
REMEMBERED_ADDRESSES = 4096
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0

Network = IPv4Network | IPv6Network
LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Bounds on senders.

    networks: the addresses that may send. max_connections, per_peer: connections open at once, in all and of one
    address. idle_timeout_s: a connection without a byte for so long is closed. unused_s, unproductive_s: when room is
    needed, a connection may be closed so long after it was opened, while it has brought no line that was taken, or so
    long after its last such line. report_every_s: seconds between reports of refusals.
    """

    networks: Sequence[Network] = LOOPBACK
    max_connections: int = 4096
    per_peer: int = 1024
    idle_timeout_s: float = 300.0
    unused_s: float = 5.0
    unproductive_s: float = 90.0
    report_every_s: float = 60.0


class Admittance:
    """The addresses that may send: those within the networks; an IPv4 address written as IPv6 counts as itself."""

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = tuple(networks)
        self._known = lru_cache(REMEMBERED_ADDRESSES)(self._judge)

    def allows(self, address: str) -> bool:
        """Return whether this peer may send; an address that cannot be read may not."""
        return self._known(address)

    def _judge(self, address: str) -> bool:
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = parsed.ipv4_mapped if parsed.version == 6 else None
        return any((mapped or parsed) in network for network in self._networks)


class GraphiteListener:
    """Receives `path value timestamp` lines over TCP, UDP or both and hands them to the sink.

    `port` 0 takes any free port; after `start` the one in use, the same for both, is in `port`. `now` gives the time in
    seconds since the epoch (a scaled clock in the dry run); idle connections are timed by the machine's own clock.
    A sink that forwards lines to other agents has `relay_port` for theirs, of which none is forwarded; 0 takes any.
    No input stops the listener, which holds at most one unfinished line per connection.
    """

    def __init__(
        self,
        sink: SampleSink,
        now: Callable[[], float],
        host: str = "127.0.0.1",
        port: int = 2003,
        limits: ListenerLimits | None = None,
        *,
        tcp: bool = True,
        udp: bool = False,
        relay_port: int = 0,
    ) -> None:
        self.counters = IntakeCounters()
        self.host = host
        self.port = port
        self._tcp, self._udp = tcp, udp
        self._forwarding = sink if isinstance(sink, ForwardingSink) else None
        if self._forwarding is not None:
            self.counters.forwarding = self._forwarding.counters
        self.relay_port = relay_port
        self._sink = sink
        self._now = now
        self._limits = limits or ListenerLimits()
        self._admittance = Admittance(self._limits.networks)
        self._slots = _Slots(self._limits)
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    @property
    def running(self) -> bool:
        """Whether it is serving."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Bind and serve; returns once the port is open, at once when it is. OSError when it cannot be bound."""
        if self.running:
            return
        ready: SimpleQueue[OSError | None] = SimpleQueue()
        self._thread = Thread(target=self._run, args=(ready,), name="graphite-listener", daemon=True)
        self._thread.start()
        try:
            failure = ready.get(timeout=_START_TIMEOUT_S)
        except Empty:
            failure = OSError(f"the listener on {self.host}:{self.port} did not start within {_START_TIMEOUT_S:g} s")
        if failure is not None:
            self._thread = None
            raise failure

    def stop(self) -> None:
        """Close every connection and the port; does nothing when it is not running."""
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        if thread.is_alive():
            loop.call_soon_threadsafe(stopping.set)
            thread.join(_STOP_TIMEOUT_S)
        self._thread = None

    def _run(self, ready: SimpleQueue[OSError | None]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except OSError as error:
            ready.put(error)

    async def _serve(self, ready: SimpleQueue[OSError | None]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        servers: list[asyncio.Server] = []
        datagrams: asyncio.DatagramTransport | None = None
        try:
            if self._tcp:
                servers.append(await self._loop.create_server(self._of_sender, self.host, self.port))
                self.port = servers[0].sockets[0].getsockname()[1]
            if self._forwarding is not None:
                servers.append(await self._loop.create_server(self._of_agent, self.host, self.relay_port))
                self.relay_port = servers[-1].sockets[0].getsockname()[1]
            if self._udp:
                datagrams = await self._open_datagrams()
        except OSError:
            for server in servers:
                server.close()
            raise
        log.info(
            "listening",
            host=self.host,
            port=self.port,
            tcp=self._tcp,
            udp=self._udp,
            networks=[str(network) for network in self._limits.networks],
            connections=self._slots.most,
        )
        ready.put(None)
        sweeper = asyncio.create_task(self._sweep())
        try:
            await self._stopping.wait()
        finally:
            sweeper.cancel()
            for server in servers:
                server.close()
            if datagrams is not None:
                datagrams.abort()
            for connection in self._slots.all():
                connection.abort()
            if self._forwarding is not None:
                self._forwarding.close()
            # One more turn lets the transports close their sockets.
            await asyncio.sleep(0)

    def _of_sender(self) -> _Connection:
        return _Connection(self, LineReader(self._sink, self.counters, self._now))

    def _of_agent(self) -> _Connection:
        assert self._forwarding is not None
        return _Connection(self, RelayReader(self._forwarding.below, self.counters, self._now))

    async def _open_datagrams(self) -> asyncio.DatagramTransport:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Datagrams(self), local_addr=(self.host, self.port)
        )
        opened: socket.socket = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UDP_BUFFER_BYTES)
        self.port = opened.getsockname()[1]
        return transport

    async def _sweep(self) -> None:
        """Close connections that have been idle for too long, and report refusals, at most once per period."""
        loop = asyncio.get_running_loop()
        pause_s = min(5.0, self._limits.idle_timeout_s / 4, self._limits.report_every_s)
        reported, reported_at = 0, loop.time() - self._limits.report_every_s
        while True:
            await asyncio.sleep(pause_s)
            now = loop.time()
            for connection in self._slots.all():
                if now - connection.received_at > self._limits.idle_timeout_s:
                    self.counters.connections_idled_out += 1
                    connection.abort()
            refused = self.counters.rejected_total
            if refused > reported and now - reported_at >= self._limits.report_every_s:
                self._report(refused - reported)
                reported, reported_at = refused, now

    def _report(self, refused: int) -> None:
        reasons = {str(reason): count for reason, count in self.counters.rejected.items() if count}
        examples = {str(reason): text for reason, text in self.counters.examples.items() if text}
        log.warning("lines_refused", new=refused, since_start=reasons, last=examples)


class _Slots:
    """The open connections, bounded in all and by peer, and which of them is closed when room is needed."""

    def __init__(self, limits: ListenerLimits) -> None:
        self._limits = limits
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES
        self.most = min(limits.max_connections, max(16, files))
        self._unused: dict[_Connection, None] = {}
        """Without a line taken, by when they were opened."""
        self._used: dict[_Connection, None] = {}
        """The others, by their last line."""
        self._of_peer: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Connections open."""
        return len(self._unused) + len(self._used)

    def all(self) -> tuple[_Connection, ...]:
        """Return every connection."""
        return *self._unused, *self._used

    def holds(self, connection: _Connection) -> bool:
        """Return whether the connection has a slot."""
        return connection in self._used or connection in self._unused

    def take(self, connection: _Connection, now: float) -> tuple[bool, _Connection | None]:
        """Give a slot to a connection; return whether it got one, and another one that has lost its slot for it.

        A peer at its limit gives up one of its connections. Where every slot is taken, the oldest connection that has
        brought nothing is closed, else the one unproductive for longest.
        """
        lost = None
        crowded = self._of_peer[connection.peer] >= self._limits.per_peer
        if crowded or self.count >= self.most:
            lost = self._spare(connection.peer if crowded else None, now)
            if lost is None:
                return False, None
            self.leave(lost)
        self._unused[connection] = None
        self._of_peer[connection.peer] += 1
        return True, lost

    def leave(self, connection: _Connection) -> None:
        """Give a slot back; does nothing when there is none."""
        if self.holds(connection):
            self._unused.pop(connection, None)
            self._used.pop(connection, None)
            self._of_peer[connection.peer] -= 1
            if not self._of_peer[connection.peer]:
                del self._of_peer[connection.peer]

    def produced(self, connection: _Connection, now: float) -> None:
        """Note that a line of this connection was taken."""
        self._unused.pop(connection, None)
        self._used.pop(connection, None)
        self._used[connection] = None
        connection.useful_at = now

    def _spare(self, peer: str | None, now: float) -> _Connection | None:
        """Return the connection, of this peer or of any, that may be closed now; None where none was idle enough."""
        for held, pause_s in ((self._unused, self._limits.unused_s), (self._used, self._limits.unproductive_s)):
            oldest = next((one for one in held if peer is None or one.peer == peer), None)
            if oldest is not None and now - oldest.useful_at >= pause_s:
                return oldest
        return None


class _Connection(asyncio.Protocol):
    """One sender. Its bytes are read to the end as they arrive, so nothing is buffered beyond an unfinished line."""

    def __init__(self, listener: GraphiteListener, reader: LineReader | RelayReader) -> None:
        self._listener = listener
        self._transport: asyncio.BaseTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self.peer = ""
        self.useful_at = self.received_at = self._loop.time()
        """When it last brought a line that was taken, else when it was opened."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener, counters = self._listener, self._listener.counters
        self._transport = transport
        counters.connections_total += 1
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else ""
        self._reader.peer = sender_at(*peer[:2]) if peer else ""
        if not listener._admittance.allows(self.peer):
            counters.connections_foreign += 1
            counters.last_foreign = self.peer
            self.abort()
            return
        taken, lost = listener._slots.take(self, self._loop.time())
        if lost is not None:
            counters.connections_displaced += 1
            counters.last_crowded = lost.peer
            lost.abort()
        if not taken:
            counters.connections_refused += 1
            counters.last_crowded = self.peer
            self.abort()
        counters.connections_open = listener._slots.count

    def data_received(self, data: bytes) -> None:
        self.received_at = self._loop.time()
        slots = self._listener._slots
        if slots.holds(self) and self._reader.feed(data):
            slots.produced(self, self.received_at)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.close()
        self._listener._slots.leave(self)
        self._listener.counters.connections_open = self._listener._slots.count

    def abort(self) -> None:
        """Close at once and drop unread data."""
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()


class _Datagrams(asyncio.DatagramProtocol):
    """Receives datagrams; each holds whole lines, so nothing carries over to the next."""

    def __init__(self, listener: GraphiteListener) -> None:
        self._counters = listener.counters
        self._admittance = listener._admittance
        self._reader = LineReader(listener._sink, listener.counters, listener._now)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._counters.datagrams += 1
        if not self._admittance.allows(addr[0]):
            self._counters.datagrams_foreign += 1
            self._counters.last_foreign = addr[0]
            return
        self._reader.peer = sender_at(*addr[:2])
        self._reader.whole(data)
