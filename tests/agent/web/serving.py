"""Serves a running agent's page on a local port, as the daemon does but for the guard before it."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

import uvicorn

from agent.api.app import create_app
from agent.api.limits import Bounds, Envelope, RequestLimits
from agent.view.view import AgentParts, AgentView
from agent.web.feed import FeedLimits
from agent.web.router import create_page_router
from tests.waiting import until

QUICK = FeedLimits(look_every_s=0.05, beat_every_s=0.2, send_within_s=0.5, retry_ms=100)
"""A stream that looks often, so that tests need not wait."""


class Served:
    """A page on `http://127.0.0.1:<port>` until the block ends."""

    def __init__(self, parts: AgentParts, port: int = 0, limits: FeedLimits = QUICK) -> None:
        self.counted: list[tuple[str, str, int]] = []
        view = AgentView(parts)
        app = create_app(view, routers=[create_page_router(view, limits)])
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            Envelope(Bounds(app, RequestLimits()), self._count),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def _count(self, method: str, route: str, status: int, seconds: float) -> None:
        self.counted.append((method, route, status))

    def __enter__(self) -> Served:
        self._thread.start()
        until(lambda: self._server.started)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server, cutting every connection."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(60.0)
        assert not self._thread.is_alive()
        self._socket.close()
