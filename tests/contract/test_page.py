"""What every decision shows on the page: a card of each subject, and a page of each decision."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from domain.controls import Pause, PauseScope
from tests.contract.cases import CASES, Case
from tests.contract.running import RunningAgent

every = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(scope="module")
def page(agent: RunningAgent) -> Iterator[httpx.Client]:
    """A client of the page."""
    with agent.client("") as made:
        yield made


@every
def test_the_overview_shows_its_subject_and_each_decision_has_a_page(
    case: Case, agent: RunningAgent, page: httpx.Client
) -> None:
    _decided(case, agent, page)
    text = page.get("/").text
    assert re.search(rf"<h\d[^>]*>(<a [^>]*>)?[^<]*\b{case.subject}\b", text), text
    decision_id = case.decision_id(case.count(agent))
    shown = page.get(f"/decisions/{decision_id}")
    assert (shown.status_code, decision_id in shown.text) == (200, True)
    assert page.get(f"/decisions/{case.decision_id(9999)}").status_code == 404


@every
def test_what_others_wrote_is_shown_as_text(case: Case, agent: RunningAgent, page: httpx.Client) -> None:
    agent.ledger.pause(
        case.decision, case.subject, Pause(PauseScope.ALL, "<script>", "<b onclick=alert(1)>", agent.clock.now())
    )
    try:
        text = page.get("/").text
    finally:
        agent.ledger.resume(case.decision, case.subject, PauseScope.ALL, at=agent.clock.now(), owner="ada")
    assert "<b onclick" not in text
    assert "<script>, <b" not in text


def _decided(case: Case, agent: RunningAgent, page: httpx.Client) -> None:
    """Let it decide once, on an order or in a turn."""
    page.post(f"/api/v1{case.path}", json=case.order(f"page-{case.count(agent)}")).raise_for_status()
    case.decide(agent)
