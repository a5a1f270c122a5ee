"""Takes the screenshots of docs/operate/page.md from a dry run: `python -m tests.agent.web.take_screenshot DIRECTORY`.

The real agent manages a fake AWS for most of a simulated hour while Chromium looks at its page.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent.kernel.turn import TurnReport
from agent.rehearsal import run
from agent.rehearsal.faults import plan_named
from agent.rehearsal.sections import FLEET_ALONE
from agent.service.assembly import Agent, assembled
from agent.service.http import parts_of
from agent.settings import Settings
from agent.view.board import ServiceBoard
from tests.agent.web.browsing import DESKTOP, PHONE, launched
from tests.agent.web.serving import Served

AFTER_TURNS = 15


class WatchedAgent(Agent):
    """An agent that tells a board of each turn, as the daemon's does."""

    board: ServiceBoard
    enough: threading.Event

    def turn(self) -> TurnReport:
        report = super().turn()
        self.board.change(leader=True, epoch=self.leadership.leads().every or 0)
        for listener in self.board.turned(report, duration_s=0.0):
            listener(self.board.read(), report)
        if self.board.read().turns == AFTER_TURNS:
            self.enough.set()
        return report


def look(agent: WatchedAgent, settings: Settings, directory: Path) -> None:
    """Wait until there is something to see, and take the pictures."""
    views: list[tuple[str, str, dict[str, Any]]] = [
        ("page", "/", {"viewport": {"width": 1280, "height": 1060}}),
        ("page-dark", "/", {"viewport": DESKTOP, "color_scheme": "dark"}),
        ("page-phone", "/", {"viewport": PHONE}),
        ("fleet", "/fleets/web", {"viewport": DESKTOP}),
        ("history", "/fleets/web/history?hours=6", {"viewport": DESKTOP}),
        ("decision", "/decisions/web-8", {"viewport": DESKTOP}),
    ]
    with Served(parts_of(agent, settings, agent.board)) as served, launched() as browser:
        agent.enough.wait()
        for name, path, options in views:
            page = browser.new_context(**options).new_page()
            page.goto(served.url + path)
            if path == "/":
                page.locator("#link[data-state=on]").wait_for()
            page.screenshot(path=str(directory / f"{name}.png"), full_page=name not in ("page", "page-dark"))


def main(directory: Path) -> None:
    """Live the hour and look at it."""
    lookers = []

    @contextmanager
    def watched(settings: Settings, *others: Any) -> Iterator[WatchedAgent]:
        with assembled(settings, *others) as agent:
            shown = WatchedAgent(**{field.name: getattr(agent, field.name) for field in fields(agent) if field.init})
            shown.board, shown.enough = ServiceBoard(agent.clock.now()), threading.Event()
            lookers.append(threading.Thread(target=look, args=(shown, settings, directory)))
            lookers[0].start()
            yield shown
            lookers[0].join()

    run.assembled = watched  # type: ignore[attr-defined, assignment]
    with TemporaryDirectory() as kept:
        options = run.DryRunOptions(plan_named("story"), speed=30.0, minutes=19, workload="nasa", directory=Path(kept))
        run.play(options, FLEET_ALONE, headless=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
