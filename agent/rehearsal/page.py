"""Serves the agent's page during a dry run, on this machine only, behind a token made for this run."""

from __future__ import annotations

import secrets
from contextlib import ExitStack

import structlog

from agent.autoscaling.ports import TickReport
from agent.service.assembly import Agent
from agent.service.http import start_http
from agent.settings import Settings
from agent.view.board import StandingBoard

log = structlog.get_logger(__name__)


def page_settings() -> dict[str, str]:
    """Return the settings that open the page on a free port, as environment variables."""
    return {"TRIMTAB_HTTP__HOST": "127.0.0.1", "TRIMTAB_HTTP__PORT": "0", "TRIMTAB_HTTP__TOKEN": secrets.token_hex(16)}


class RehearsalPage:
    """The page of one dry run; `told` keeps what it shows up to date."""

    def __init__(self, stack: ExitStack, settings: Settings, agent: Agent) -> None:
        self._agent = agent
        self._board = StandingBoard(agent.clock.now())
        self._server = start_http(stack, settings, self._board, agent).server
        self._token = settings.http.token

    @property
    def url(self) -> str:
        """Where to look; the token stands in it, as a browser takes name and password."""
        token = self._token.get_secret_value() if self._token else ""
        return f"http://trimtab:{token}@127.0.0.1:{self._server.port}/"

    def told(self, report: TickReport, duration_s: float) -> None:
        """Take in a turn, as the daemon's board does."""
        self._board.change(leader=True, epoch=self._agent.ports.epoch, ready=True)
        for listener in self._board.turned(report, duration_s):
            try:
                listener(self._board.read(), report)
            except Exception:
                log.exception("listener_failed")
