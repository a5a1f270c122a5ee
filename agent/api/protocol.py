"""Uvicorn's HTTP protocol with what it lacks against slow and crowding clients: a deadline for the head, and a cap."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from agent.api.error_responses import raw_answer
from agent.api.limits import RequestLimits


def bounded_protocol(limits: RequestLimits) -> type[H11Protocol]:
    """Return a protocol class for uvicorn that holds every connection to these limits."""

    class BoundedProtocol(H11Protocol):
        """One connection. A head that has not arrived in time is answered with 408, one too large with 414 or 431."""

        def __init__(
            self,
            config: Config,
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
            super().connection_made(transport)
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
                self._give_up(400, "this is no HTTP request")

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
