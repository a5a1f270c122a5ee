"""The Graphite plaintext listener: a TCP and UDP server in its own thread that bounds whatever a sender may do."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from queue import Empty, SimpleQueue
from threading import Thread

import structlog

from collectors.base import SampleSink, sender_at
from collectors.intake import IntakeCounters, LineReader
from collectors.pickled import PickleReader

log = structlog.get_logger(__name__)

UDP_BUFFER_BYTES = 4 * 2**20
"""Requested from the kernel, which may grant less: what of a burst fits is read, the rest it drops uncounted."""
OTHER_FILES = 512
"""File descriptors left to the ledger, to AWS and to HTTP: senders must not take those away."""
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0

MOST_HELD_BYTES = 64 * 2**20
"""Of unfinished lines and messages, in all: a thousand connections with a message each would take all memory."""

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

    _MOST_REMEMBERED = 4096

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = tuple(networks)
        self._seen: dict[str, bool] = {}

    def allows(self, address: str) -> bool:
        """Return whether this peer may send; an address that cannot be read may not."""
        known = self._seen.get(address)
        if known is None:
            known = self._judge(address)
            if len(self._seen) >= self._MOST_REMEMBERED:
                self._seen.clear()
            self._seen[address] = known
        return known

    def _judge(self, address: str) -> bool:
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = parsed.ipv4_mapped if parsed.version == 6 else None
        return any((mapped or parsed) in network for network in self._networks)


class GraphiteListener:
    """Receives `path value timestamp` lines over TCP, UDP or both and hands them to the sink.

    `port` 0 takes any free port; after `start` the one in use, the same for both, is in `port`. `pickle_port`, where it
    is given, takes the pickled messages of relays over TCP. `now` gives the time in
    seconds since the epoch (a scaled clock in the dry run); idle connections are timed by the machine's own clock.
    Whatever a sender does, the listener keeps running and holds at most one unfinished line per connection.
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
        pickle_port: int | None = None,
    ) -> None:
        self.counters = IntakeCounters()
        self.host = host
        self.port = port
        self.pickle_port = pickle_port
        self._tcp, self._udp = tcp, udp
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
                servers.append(await self._loop.create_server(lambda: _Connection(self), self.host, self.port))
                self.port = servers[0].sockets[0].getsockname()[1]
            if self.pickle_port is not None:
                pickled = await self._loop.create_server(
                    lambda: _Connection(self, PickleReader), self.host, self.pickle_port
                )
                servers.append(pickled)
                self.pickle_port = pickled.sockets[0].getsockname()[1]
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
            pickle_port=self.pickle_port,
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
            # One more turn lets the transports close their sockets.
            await asyncio.sleep(0)

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


@dataclass(slots=True)
class _OfPeer:
    """One peer's connections: those that have brought no line yet, by when they were opened; the others, by their last.

    Each is in the order in which connections may be closed for others.
    """

    unused: dict[_Connection, None] = field(default_factory=dict)
    used: dict[_Connection, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.unused) + len(self.used)


class _Slots:
    """The connections open, and which one is closed when room is needed."""

    def __init__(self, limits: ListenerLimits) -> None:
        self._limits = limits
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES
        self.most = min(limits.max_connections, max(16, files))
        self._unused: dict[_Connection, None] = {}
        self._peers: dict[str, _OfPeer] = {}
        self._held_bytes = 0
        self.count = 0

    def all(self) -> tuple[_Connection, ...]:
        """Return every connection."""
        return tuple(connection for ours in self._peers.values() for connection in (*ours.unused, *ours.used))

    def holds(self, connection: _Connection) -> bool:
        """Return whether the connection has a slot."""
        ours = self._peers.get(connection.peer)
        return ours is not None and (connection in ours.used or connection in ours.unused)

    def take(self, connection: _Connection, now: float) -> tuple[bool, _Connection | None]:
        """Give a slot to a connection; return whether it got one, and another one that has lost its slot for it.

        A peer that has all it may have gives up one of its own. Where every slot is taken, the oldest connection that
        has brought nothing goes, else the one unproductive for longest of the peer with the most.
        """
        ours = self._peers.setdefault(connection.peer, _OfPeer())
        lost = None
        if len(ours) >= self._limits.per_peer:
            lost = self._spare(ours.unused, ours.used, now)
        elif self.count >= self.most:
            lost = self._spare(self._unused, max(self._peers.values(), key=len).used, now)
        else:
            self._add(ours, connection)
            return True, None
        if lost is not None:
            self.leave(lost)
            self._add(self._peers.setdefault(connection.peer, _OfPeer()), connection)
        elif not ours:
            del self._peers[connection.peer]
        return lost is not None, lost

    def leave(self, connection: _Connection) -> None:
        """Give a slot back; does nothing when there is none."""
        if not self.holds(connection):
            return
        ours = self._peers[connection.peer]
        for held in (ours.unused, ours.used, self._unused):
            held.pop(connection, None)
        self.count -= 1
        self._held_bytes -= connection.held_bytes
        if not ours:
            del self._peers[connection.peer]

    def hold(self, connection: _Connection, held_bytes: int) -> _Connection | None:
        """Note what a connection holds unfinished; return the one that holds most, without a slot now, for too much."""
        self._held_bytes += held_bytes - connection.held_bytes
        connection.held_bytes = held_bytes
        if self._held_bytes <= MOST_HELD_BYTES:
            return None
        heaviest = max(self.all(), key=lambda one: one.held_bytes)
        self.leave(heaviest)
        return heaviest

    def produced(self, connection: _Connection, now: float) -> None:
        """Note that a line of this connection was taken."""
        ours = self._peers[connection.peer]
        if connection.produced_at is None:
            del ours.unused[connection], self._unused[connection]
        else:
            del ours.used[connection]
        ours.used[connection] = None
        connection.produced_at = now

    def _add(self, ours: _OfPeer, connection: _Connection) -> None:
        ours.unused[connection] = self._unused[connection] = None
        self.count += 1

    def _spare(self, unused: dict[_Connection, None], used: dict[_Connection, None], now: float) -> _Connection | None:
        """Return the connection that may be closed now, the first of either; None where none has been idle enough."""
        oldest = next(iter(unused), None)
        if oldest is not None and now - oldest.opened_at >= self._limits.unused_s:
            return oldest
        idlest = next(iter(used), None)
        if idlest is not None and now - (idlest.produced_at or 0.0) >= self._limits.unproductive_s:
            return idlest
        return None


class _Connection(asyncio.Protocol):
    """One sender. Its bytes are read to the end as they arrive, so nothing is buffered beyond an unfinished line."""

    def __init__(self, listener: GraphiteListener, reader: type[LineReader] | type[PickleReader] = LineReader) -> None:
        self._listener = listener
        self._transport: asyncio.BaseTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._reader = reader(listener._sink, listener.counters, listener._now)
        self.peer = ""
        self.held_bytes = 0
        self.opened_at = self.received_at = self._loop.time()
        self.produced_at: float | None = None

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
        self._displace(lost)
        if not taken:
            counters.connections_refused += 1
            counters.last_crowded = self.peer
            self.abort()
        counters.connections_open = listener._slots.count

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        self.received_at = now
        slots = self._listener._slots
        if not slots.holds(self):
            return
        if self._reader.feed(data):
            slots.produced(self, now)
        self._displace(slots.hold(self, self._reader.held_bytes))
        if self._reader.broken:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.close()
        self._listener._slots.leave(self)
        self._listener.counters.connections_open = self._listener._slots.count

    def _displace(self, lost: _Connection | None) -> None:
        if lost is not None:
            self._listener.counters.connections_displaced += 1
            self._listener.counters.last_crowded = lost.peer
            lost.abort()

    def abort(self) -> None:
        """Close at once, dropping whatever is under way."""
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
