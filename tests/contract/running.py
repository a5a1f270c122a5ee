"""An agent of six decisions for the contract: real parts on one ledger, a simulated AWS, HTTP on real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from agent.api.app import create_app
from agent.api.server import HttpServer
from agent.kernel.decision import Host, Part
from agent.kernel.leads import Leads
from agent.kernel.parts import Parts, parts_of
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger
from agent.service.assembly import turned
from agent.settings import Settings
from agent.telemetry.telemetry import Telemetry
from agent.view.board import ServiceBoard
from agent.view.view import AgentParts, AgentView
from agent.web.router import create_page_router
from collectors.aws import AwsOptions, AwsSession
from collectors.intake import IntakeCounters
from domain.clock import VirtualClock, read_both
from tests.plug_ins import on_path, package

READER, ASKER, OPERATOR = "reading-token-0123456789", "asking-token-0246813579", "operating-token-9876543210"
TOKENS = {"port": 0, "token": READER, "ask_token": ASKER, "operator_token": OPERATOR}
PATIENCE_S = 60.0
TOY = {"trimtab.decisions": {"tokens": "tests.agent.kernel.tokens.decision:TokensPart"}}


@contextmanager
def toy_installed(site: Path) -> Iterator[None]:
    """Install the toy decision by its entry point."""
    package(site, "tokens", TOY)
    with on_path(site):
        yield


def over_socket(path: Path, base: str = "") -> httpx.Client:
    """Return a client of a unix socket; without certificates, which take longer to load than the request."""
    transport = httpx.HTTPTransport(uds=str(path), verify=False)
    return httpx.Client(transport=transport, base_url=f"http://localhost{base}", timeout=PATIENCE_S)


def over_tcp(port: int | None, token: str) -> httpx.Client:
    """Return a client of a TCP port that shows a token."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE_S, verify=False)


@dataclass
class RunningAgent:
    """Parts on a ledger; the test takes the turns, as the leader of `epoch`."""

    settings: Settings
    ledger: Ledger
    clock: VirtualClock
    stack: ExitStack
    session: AwsSession | None = None
    epoch: int = 0
    parts: Parts = field(init=False)
    view: AgentView = field(init=False)
    board: ServiceBoard = field(init=False)
    server: HttpServer | None = None

    def __post_init__(self) -> None:
        self.board = ServiceBoard(self.clock.now())
        self.parts = parts_of(Host(self.ledger, self.settings, self.clock, session=self.session))
        self.view = AgentView(
            AgentParts(
                settings=self.settings,
                board=self.board,
                ledger=self.ledger,
                now=self.clock.now,
                monotonic=self.clock.monotonic,
                parts=self.parts,
                collectors=dict,
                intake=IntakeCounters,
                aws_calls=dict,
            )
        )
        if self.session is not None:
            for part in self.parts:
                part.start(self.stack)

    def part(self, name: str) -> Part:
        """Return the part of a decision."""
        return self.parts.named(name)

    def lead(self, owner: str = "contract") -> RunningAgent:
        """Take the next epoch."""
        self.epoch = self.ledger.take_epoch(owner, self.clock.now())
        return self

    def turn(self, name: str | None = None) -> TurnReport:
        """Let one part, or every part, take its turn."""
        parts = self.parts if name is None else (self.part(name),)
        return turned(parts, read_both(self.clock), Leads(every=self.epoch))

    def serve(self) -> HttpServer:
        """Serve it over HTTP until the stack is closed."""
        telemetry = Telemetry(self.view)
        app = create_app(self.view, telemetry.exposition, routers=(create_page_router(self.view),))
        self.server = HttpServer(app, self.settings, telemetry.count_request)
        self.server.start()
        self.stack.callback(self.server.stop)
        return self.server

    def client(self, base: str = "/api/v1") -> httpx.Client:
        """Return a client of its socket, to be closed by the caller."""
        server = self.server or self.serve()
        return over_socket(server.path, base)

    def lose_ledger(self) -> Callable[[], object]:
        """Take the ledger's file away; call the result to bring it back."""
        path = self.ledger.database.path
        assert path is not None
        away = path.with_suffix(".away")
        path.rename(away)
        return lambda: away.rename(path)


@contextmanager
def running(
    url: str, clock: VirtualClock, endpoint: str | None = None, *, directory: Path, **settings: Any
) -> Iterator[RunningAgent]:
    """Run an agent on a ledger; endpoint: of the simulated AWS, without which no part is started."""
    given = {"state_directory": directory, "listener": {"port": 0}, "mode": "act", **settings}
    options = AwsOptions("us-east-1", endpoint, access_key_id="agent", secret_access_key="simulated")
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.open(url, busy_timeout_s=30.0))
        session = None
        if endpoint is not None:
            session = AwsSession(options, clock, read_only=False)
            stack.callback(session.close)
        yield RunningAgent(Settings.model_validate(given), ledger, clock, stack, session)
