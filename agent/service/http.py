"""Starts the interfaces of a running agent: view, metrics, HTTP, and its own metrics to Graphite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from agent.api.app import create_app
from agent.api.server import HttpServer
from agent.kernel.decision import Check
from agent.service.assembly import Agent
from agent.settings import Settings
from agent.telemetry.telemetry import SelfMetrics, Telemetry
from agent.view.board import ServiceBoard
from agent.view.view import AgentParts, AgentView
from agent.web.router import create_page_router
from collectors.sender import GraphiteSender, SenderOptions
from domain.subject import Subject


@dataclass(frozen=True, slots=True)
class Interface:
    """The started interfaces: the view of the agent, its metrics, and the server."""

    view: AgentView
    telemetry: Telemetry
    server: HttpServer


def start_http(
    stack: ExitStack, settings: Settings, board: ServiceBoard, agent: Agent, alive: Callable[[], bool] = lambda: True
) -> Interface:
    """Serve the agent over HTTP and count its metrics; both end with the stack.

    alive: whether the loop turns, for the watchdog. Raises ConfigurationError when TCP lacks its token or its
    certificate cannot be used, BadInput when a socket cannot be had.
    """
    return show(stack, parts_of(agent, settings, board, alive))


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


def lead_check(agent: Agent) -> Check:
    """Return whether every subject that this agent manages has a leader: it, or another agent of a shared ledger."""
    lead = agent.leadership
    mine, others = lead.leads(), lead.leaders()
    if mine.every is not None:
        return Check("leader", True, "this agent leads")
    subjects = [Subject(part.name, name) for part in agent.parts for name in part.managed()]
    if trouble := lead.trouble() or "; ".join(lead.differences().values()):
        return Check("leader", False, trouble)
    if without := [subject.path for subject in subjects if mine.of(subject) is None and subject not in others]:
        return Check("leader", False, f"no agent leads {', '.join(without)}, so nothing is decided for these")
    led = sum(mine.of(subject) is not None for subject in subjects)
    named = ", ".join(sorted(set(others.values())))
    by_others = f"; agents that lead: {named}" if named else ""
    return Check("leader", True, f"this agent leads {led} of {len(subjects)} subjects{by_others}")


def clock_check(agent: Agent) -> Check:
    """Return whether the host's clock agrees with AWS's."""
    difference = agent.session.clock_check.difference
    return Check("clock", not difference, difference or "the clock agrees with AWS's")


def parts_of(
    agent: Agent, settings: Settings, board: ServiceBoard, alive: Callable[[], bool] = lambda: True
) -> AgentParts:
    """Return the parts of an assembled agent."""
    return AgentParts(
        settings=settings,
        board=board,
        ledger=agent.ledger,
        now=agent.clock.now,
        monotonic=agent.clock.monotonic,
        parts=agent.parts,
        claims=agent.refused_claims,
        unknown_vms=agent.unknown_vms,
        collectors=lambda: agent.poller.health,
        intake=lambda: agent.listener.counters,
        aws_calls=lambda: agent.session.budget.counts,
        alive=alive,
        checks=(lambda: lead_check(agent), lambda: clock_check(agent)),
    )
