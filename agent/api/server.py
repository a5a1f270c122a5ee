"""Serves the application in a thread of its own: on a unix socket, and with a token on TCP too.

Uvicorn gets what it lacks against slow and crowding clients: a deadline for the head, and a cap on connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import anyio.to_thread
import h11
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from agent.api.errors import raw_answer
from agent.api.limits import Bounds, Count, Envelope, RequestLimits
from agent.api.security import OPEN_PATHS, SocketGuard, TokenGuard, Tokens
from agent.api.unix_socket import reachable
from agent.settings import Settings
from agent.settings.model import HttpSettings
from domain.errors import BadInput, ConfigurationError, Mistake, TrimtabError

log = structlog.get_logger(__name__)

SOCKET_MODE = 0o660
WORKERS = 8
"""Threads that answer requests: the ledger is read in them, not in the server's own."""

BACKLOG = 128
KEEP_ALIVE_S = 5
STOP_WITHIN_S = 2
_START_TIMEOUT_S = 10.0
_GATHERED_BYTES = 65536


class _GatheringTransport:
    """A transport that gathers the writes of one step of the loop into one piece, such as head and body."""

    def __init__(self, below: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._below = below
        self._loop = loop
        self._written = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def write(self, data: bytes) -> None:
        """Send it with the other writes of this step; a large piece at once, so that flow control slows it."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written += data
        if len(self._written) >= _GATHERED_BYTES:
            self._send()

    def close(self) -> None:
        """Send the rest, then close."""
        self._send()
        self._below.close()

    def _send(self) -> None:
        if self._written:
            self._below.write(bytes(self._written))
            self._written.clear()


def bounded_protocol(limits: RequestLimits) -> type[H11Protocol]:
    """Return a protocol class for uvicorn that holds every connection to these limits."""

    class BoundedProtocol(H11Protocol):
        """One connection. A head that has not arrived in time is answered with 408, one too large with 414 or 431."""

        def __init__(
            self,
            config: uvicorn.Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(config, server_state, app_state, _loop)
            # What is served is the requests of operators; a WebSocket upgrade stays an ordinary request.
            self.ws_protocol_class = None
            self._head_timer: asyncio.TimerHandle | None = None
            self._head = b""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
            gathering: Any = _GatheringTransport(transport, self.loop)
            super().connection_made(gathering)
            if len(self.connections) > limits.connections:
                self._give_up(503, "too many connections are open; try again")
                return
            self._await_head()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self.conn.their_state is h11.IDLE:
                # A request may arrive byte by byte: each byte must not grant it more time.
                if self._head_timer is None:
                    self._await_head()
                self._head = (self._head + data)[: limits.target_bytes + 64]
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._head_arrived()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_arrived()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Answer what is no HTTP: too long a request line with 414, too large a head with 431, else 400."""
            line, newline, _ = self._head.partition(b"\n")
            self._head_arrived()
            if not newline and len(line) > limits.target_bytes:
                self._give_up(414, f"keep the path and query below {limits.target_bytes} bytes")
            elif newline and len(self.conn.trailing_data[0]) > limits.head_bytes:
                self._give_up(431, f"keep the headers below {limits.head_bytes} bytes")
            else:
                self._give_up(400, "this is not an HTTP request")

        def _await_head(self) -> None:
            self._head_timer = self.loop.call_later(limits.timeout_s, self._head_is_late)

        def _head_arrived(self) -> None:
            self._head = b""
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _head_is_late(self) -> None:
            self._head_timer = None
            if not self.transport.is_closing():
                self._give_up(408, f"the request did not arrive within {limits.timeout_s:g} s")

        def _give_up(self, status: int, detail: str) -> None:
            self.transport.write(raw_answer(status, detail))
            self.transport.close()

    return BoundedProtocol


class _Server(uvicorn.Server):
    """Uvicorn on one open socket, with a deadline for TLS handshakes."""

    def __init__(self, config: uvicorn.Config, opened: socket.socket, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._opened = opened
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        config, loop = self.config, asyncio.get_running_loop()
        await self.lifespan.startup()

        def connection() -> asyncio.Protocol:
            protocol: Callable[..., asyncio.Protocol] = config.http_protocol_class
            return protocol(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        made = await loop.create_server(
            connection,
            sock=self._opened,
            ssl=self._tls,
            ssl_handshake_timeout=self._handshake_s(),
            backlog=BACKLOG,
        )
        self.servers = [made]
        self.started = True

    def _handshake_s(self) -> float | None:
        return KEEP_ALIVE_S if self._tls is not None else None


class HttpServer:
    """The agent's HTTP servers: the unix socket, whose mode is its guard, and TCP, guarded by tokens.

    They share nothing but the application, so that whoever crowds the TCP port does not lock out the socket.
    """

    def __init__(self, app: ASGIApp, settings: Settings, count: Count = lambda *_: None) -> None:
        self._app = app
        self._count = count
        self._settings = settings.http
        self.path = settings.http_socket
        self.port: int | None = None
        self._limits = RequestLimits(
            timeout_s=settings.http.request_timeout_s, connections=settings.http.max_connections
        )
        self._servers: list[_Server] = []
        self._inode: int | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Serve; returns once connections are accepted.

        ConfigurationError when TCP is asked for without a token or the certificate cannot be used, BadInput when a
        socket cannot be bound.
        """
        with contextlib.ExitStack() as undo:
            unix = undo.enter_context(bound_unix(self.path))
            self._inode = os.stat(self.path).st_ino
            self._servers = [self._server(SocketGuard(self._bounded()), unix, None)]
            if self._settings.port is not None:
                tcp = undo.enter_context(self._bound_tcp(self._settings.port))
                self._servers.append(
                    self._server(TokenGuard(self._bounded(), tokens(self._settings)), tcp, tls(self._settings))
                )
                self.port = tcp.getsockname()[1]
            self._thread = Thread(target=self._run, name="http", daemon=True)
            self._thread.start()
            self._await_start()
            undo.pop_all()
        log.info("http_serving", socket=str(self.path), port=self.port, tls=self._settings.certificate is not None)

    def stop(self) -> None:
        """Close every connection, streams after a moment, and remove the socket; does nothing when not running."""
        thread = self._thread
        if thread is None:
            return
        for server in self._servers:
            server.should_exit = True
        thread.join(2 * STOP_WITHIN_S + 1)
        self._thread = None
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
                self.path.unlink()

    def _bounded(self) -> ASGIApp:
        return Bounds(self._app, self._limits)

    def _server(self, app: ASGIApp, opened: socket.socket, context: ssl.SSLContext | None) -> _Server:
        config = uvicorn.Config(
            Envelope(app, self._count),
            http=bounded_protocol(self._limits),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            # Below this it tells of every start, stop and garbled request: strangers could fill the log.
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=min(KEEP_ALIVE_S, int(self._limits.timeout_s)),
            timeout_graceful_shutdown=STOP_WITHIN_S,
            h11_max_incomplete_event_size=self._limits.head_bytes,
        )
        config.load()
        return _Server(config, opened, context)

    def _bound_tcp(self, port: int) -> socket.socket:
        host = self._settings.host
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            opened = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            remedy = f"{host} port {port} cannot be listened on ({error.strerror or error}): give another port or host"
            raise BadInput("TRIMTAB_HTTP__PORT", port, remedy) from error
        # Connections inherit it. asyncio sets it only on sockets made with a protocol number; without it the body of an
        # answer waits for the client's delayed acknowledgement of the head, 40 ms.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("http_failed")

    async def _serve(self) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = WORKERS
        await asyncio.gather(*(server.serve() for server in self._servers))

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not all(server.started for server in self._servers):
            if self._thread is None or not self._thread.is_alive() or time.monotonic() > deadline:
                raise TrimtabError("the HTTP server did not start; see the log")
            time.sleep(0.005)


def bound_unix(path: Path) -> socket.socket:
    """Return a socket bound to the path, its mode set before anyone can connect; BadInput says what is in the way."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        with reachable(path) as name:
            opened.bind(name)
        path.chmod(SOCKET_MODE)
    except OSError as error:
        opened.close()
        remedy = f"the socket cannot be made ({error.strerror or error}): give another path"
        raise BadInput("TRIMTAB_HTTP__SOCKET", str(path), remedy) from error
    return opened


def _remove_stale(path: Path) -> None:
    """Remove a socket that no process listens on any more; OSError when one does, or when it is no socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(0, "the path exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            with reachable(path) as name:
                probe.connect(name)
        except ConnectionRefusedError:
            path.unlink()
            return
    raise FileExistsError(0, "another agent listens there")


def tokens(http: HttpSettings) -> Tokens:
    """Return what opens the TCP port; ConfigurationError when there is no token."""
    if http.token is None:
        remedy = "a TCP port needs a token: give TRIMTAB_HTTP__TOKEN as a credential"
        raise ConfigurationError([Mistake("TRIMTAB_HTTP__PORT", str(http.port), remedy)])
    open_paths = OPEN_PATHS | {"/metrics"} if http.open_metrics else OPEN_PATHS
    return Tokens(http.token, http.operator_token, http.ask_token, open_paths)


def tls(http: HttpSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the certificate, None where none is set; ConfigurationError when it cannot be used."""
    if http.certificate is None or http.private_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without a password to give, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(http.certificate, http.private_key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        remedy = f"it cannot be used with its key ({reason}): give readable PEM files of one pair, without passphrase"
        raise ConfigurationError([Mistake("TRIMTAB_HTTP__CERTIFICATE", str(http.certificate), remedy)]) from error
    return context
