"""The Graphite plaintext listener: a TCP and UDP server in its own thread that bounds whatever a sender may do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

import structlog

from collectors.base import SampleSink
from collectors.intake import IntakeCounters
from collectors.lines import LineReader

log = structlog.get_logger(__name__)

UDP_BUFFER_BYTES = 4 * 2**20
"""Asked of the kernel, which may grant less: what of a burst fits is read, the rest it drops uncounted."""
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Bounds on senders: connections open at once, seconds of silence; and seconds between reports of refusals."""

    max_connections: int = 4096
    idle_timeout_s: float = 300.0
    report_every_s: float = 60.0


class GraphiteListener:
    """Receives `path value timestamp` lines over TCP, UDP or both and hands them to the sink.

    `port` 0 takes any free port; after `start` the one in use, the same for both, is in `port`. `now` gives the time in
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
    ) -> None:
        self.counters = IntakeCounters()
        self.host = host
        self.port = port
        self._tcp, self._udp = tcp, udp
        self._sink = sink
        self._now = now
        self._limits = limits or ListenerLimits()
        self._connections: set[_Connection] = set()
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
        server: asyncio.Server | None = None
        datagrams: asyncio.DatagramTransport | None = None
        if self._tcp:
            server = await self._loop.create_server(lambda: _Connection(self), self.host, self.port)
            self.port = server.sockets[0].getsockname()[1]
        try:
            if self._udp:
                datagrams = await self._open_datagrams()
        except OSError:
            if server is not None:
                server.close()
            raise
        log.info("listening", host=self.host, port=self.port, tcp=self._tcp, udp=self._udp)
        ready.put(None)
        sweeper = asyncio.create_task(self._sweep())
        try:
            await self._stopping.wait()
        finally:
            sweeper.cancel()
            if server is not None:
                server.close()
            if datagrams is not None:
                datagrams.abort()
            for connection in tuple(self._connections):
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
            for connection in tuple(self._connections):
                if now - connection.heard_at > self._limits.idle_timeout_s:
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


class _Connection(asyncio.Protocol):
    """One sender. Its bytes are read to the end as they arrive, so nothing is buffered beyond an unfinished line."""

    def __init__(self, listener: GraphiteListener) -> None:
        self._listener = listener
        self._transport: asyncio.BaseTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._reader = LineReader(listener._sink, listener.counters, listener._now)
        self.heard_at = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener, counters = self._listener, self._listener.counters
        self._transport = transport
        counters.connections_total += 1
        if len(listener._connections) >= listener._limits.max_connections:
            counters.connections_refused += 1
            self.abort()
            return
        listener._connections.add(self)
        counters.connections_open = len(listener._connections)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        if self in self._listener._connections:
            self._reader.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.close()
        self._listener._connections.discard(self)
        self._listener.counters.connections_open = len(self._listener._connections)

    def abort(self) -> None:
        """Close at once, dropping whatever is under way."""
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()


class _Datagrams(asyncio.DatagramProtocol):
    """Whoever sends datagrams; each holds whole lines, so nothing is kept from one to the next."""

    def __init__(self, listener: GraphiteListener) -> None:
        self._counters = listener.counters
        self._reader = LineReader(listener._sink, listener.counters, listener._now)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._counters.datagrams += 1
        self._reader.whole(data)
