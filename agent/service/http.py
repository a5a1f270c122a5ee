"""Starts everything that shows a running agent to others: view, metrics, HTTP, and its own metrics to Graphite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from agent.api.app import create_app
from agent.api.server import HttpServer
from agent.service.assembly import Agent
from agent.settings import Settings
from agent.telemetry.graphite import SelfMetrics
from agent.telemetry.telemetry import Telemetry
from agent.view.board import StandingBoard
from agent.view.parts import AgentParts, Check, parts_of
from agent.view.view import AgentView
from agent.web.router import create_page_router
from collectors.sender import GraphiteSender, SenderOptions


@dataclass(frozen=True, slots=True)
class Interface:
    """What was started: the view of the agent, its metrics, and the servers."""

    view: AgentView
    telemetry: Telemetry
    server: HttpServer


def start_http(
    stack: ExitStack,
    settings: Settings,
    board: StandingBoard,
    agent: Agent,
    *,
    alive: Callable[[], bool] = lambda: True,
    checks: tuple[Callable[[], Check], ...] = (),
) -> Interface:
    """Serve the agent over HTTP and count what it does; all of it ends with the stack.

    alive: whether the loop turns, as the watchdog sees it. checks: further conditions of readiness. Raises
    ConfigurationError when TCP lacks its token or its certificate cannot be used, BadInput when a socket cannot be had.
    """
    return show(stack, parts_of(agent, settings, board, alive, checks))


def show(stack: ExitStack, parts: AgentParts) -> Interface:
    """Serve an agent given by its parts."""
    settings = parts.settings
    view = AgentView(parts)
    telemetry = Telemetry(view)
    app = create_app(view, telemetry.exposition, routers=(create_page_router(view),))
    server = HttpServer(app, settings, telemetry.count_request)
    server.start()
    stack.callback(server.stop)
    graphite = settings.self_metrics
    if graphite.host is not None:
        sender = GraphiteSender(SenderOptions(graphite.host, graphite.port))
        stack.callback(sender.close)
        parts.board.listen(SelfMetrics(telemetry, sender, graphite.prefix, parts.now))
    return Interface(view, telemetry, server)
