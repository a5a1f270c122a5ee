"""A running agent, its page on a local port, and a browser to look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, Request

from tests.agent.api.running import Running
from tests.agent.web.browsing import DESKTOP
from tests.agent.web.serving import Served
from tests.faults.conftest import make_world  # noqa: F401 (a fixture)
from tests.faults.world import MakeWorld


@pytest.fixture
def running(make_world: MakeWorld) -> Running:  # noqa: F811
    """An agent whose loop has turned three times."""
    agent = Running(make_world())
    agent.tick(3)
    return agent


@pytest.fixture
def served(running: Running) -> Iterator[Served]:
    """Its page."""
    with Served(running.parts) as made:
        yield made


@dataclass
class Looked:
    """A page and what it complained about: messages on the console, requests to elsewhere."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[..., Looked]]:
    """Return a function that opens an address; at the end every page must have kept quiet and asked only us."""
    opened: list[Looked] = []
    contexts = []

    def open_page(address: str, *, live: bool = True, **options: object) -> Looked:
        context = browser.new_context(**{"viewport": DESKTOP, **options})  # type: ignore[arg-type]
        contexts.append(context)
        looked = Looked(context.new_page())
        opened.append(looked)
        looked.page.on("console", lambda message: looked.said.append(message.text))
        looked.page.on("pageerror", lambda error: looked.said.append(str(error)))

        def note(request: Request) -> None:
            looked.asked.append(request.url)

        looked.page.on("request", note)
        looked.page.goto(address)
        if live:
            looked.page.locator("#link[data-state=on]").wait_for()
        return looked

    yield open_page
    for context in contexts:
        context.close()
    for looked in opened:
        assert all(url.startswith("http://127.0.0.1:") for url in looked.asked), looked.asked
        assert [
            text for text in looked.said if "ERR_CONNECTION_REFUSED" not in text and "ERR_INCOMPLETE" not in text
        ] == []
