"""A running agent, its servers on real sockets, and clients of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.api.server import HttpServer
from tests.agent.api.running import ASKER, OPERATOR, READER, Running
from tests.faults.world import Plan, World
from tests.short_directory import short_directory

HERE = Path(__file__).parent
Serve = Callable[..., HttpServer]
PATIENCE_S = 60.0
"""How long a client waits: on a busy machine an answer may take long without being wrong."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that share an agent before those that change one, which would end the shared one."""
    places = [place for place, item in enumerate(items) if item.path.parent == HERE]
    modules = list(dict.fromkeys(items[place].path for place in places))
    ours = sorted(
        (items[place] for place in places),
        key=lambda item: (modules.index(item.path), "running" in getattr(item, "fixturenames", ())),
    )
    for place, item in zip(places, ours, strict=True):
        items[place] = item


class Stage:
    """Where agents run, one at a time: a simulated cloud is one to a process."""

    def __init__(self, make_directory: Callable[[], Path]) -> None:
        self._make_directory = make_directory
        self._shared: Running | None = None
        self._servers: dict[str, HttpServer] = {}
        self._undo = ExitStack()

    def shared(self) -> Running:
        """The agent that tests share and leave as it is."""
        if self._shared is None:
            self._shared = self.own()
        return self._shared

    def own(self, turns: int = 3) -> Running:
        """An agent of the test's own."""
        self.clear()
        agent = Running(World(self._make_directory(), Plan()))
        agent.world.submit(20)
        agent.tick(turns)
        return agent

    def clear(self) -> None:
        """End the shared agent and its servers, if it runs."""
        self._undo.close()
        self._servers.clear()
        if self._shared is not None:
            self._shared.world.close()
            self._shared = None

    def server(self, **http: Any) -> HttpServer:
        """A server of the shared agent with these HTTP settings, which tests share too."""
        key = repr(sorted(http.items()))
        if key not in self._servers:
            self._servers[key] = self._undo.enter_context(serving(self.shared(), **http))
        return self._servers[key]


@contextmanager
def serving(agent: Running, **http: Any) -> Iterator[HttpServer]:
    """Serve an agent with these HTTP settings, on a socket in a directory whose path is short enough.

    Here a request may have less time than the settings allow.
    """
    with short_directory() as directory:
        server = agent.server(**{"socket": directory / "http.sock", **http})
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Where the agents of these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("TRIMTAB_")]:
            patch.delenv(name)
        made = Stage(lambda: tmp_path_factory.mktemp("world"))
        yield made
        made.clear()


@pytest.fixture
def shared(stage: Stage) -> Running:
    """An agent whose loop has turned three times on a queue that grew; others share it, so leave it as it is."""
    return stage.shared()


@pytest.fixture
def running(stage: Stage) -> Iterator[Running]:
    """The same, for a test that changes it."""
    agent = stage.own()
    yield agent
    agent.world.close()


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """A directory whose path is short enough for a socket."""
    with short_directory() as directory:
        yield directory


@pytest.fixture
def serve(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Serve]:
    """Serve the test's own agent where it asked for `running`, else the shared one, with these HTTP settings."""
    if "running" not in request.fixturenames:
        yield stage.server
        return
    agent: Running = request.getfixturevalue("running")
    with ExitStack() as stack:
        yield lambda **http: stack.enter_context(serving(agent, **http))


@pytest.fixture
def client(serve: Serve) -> Iterator[httpx.Client]:
    """A client of the unix socket."""
    with over_socket(serve()) as made:
        yield made


@pytest.fixture
def over_tcp(serve: Serve) -> Iterator[Callable[..., httpx.Client]]:
    """Make clients of a TCP port that has a token for each role; `token` None shows none."""
    server = serve(port=0, token=READER, ask_token=ASKER, operator_token=OPERATOR)
    with ExitStack() as stack:

        def make(token: str | None = None) -> httpx.Client:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            return stack.enter_context(
                httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers, timeout=PATIENCE_S)
            )

        yield make


def over_socket(server: HttpServer) -> httpx.Client:
    """Return a client of a server's unix socket."""
    transport = httpx.HTTPTransport(uds=str(server.path))
    return httpx.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE_S)


def asked(server: HttpServer, path: str) -> httpx.Response:
    """Return a server's answer over its unix socket."""
    with over_socket(server) as client:
        return client.get(path)
