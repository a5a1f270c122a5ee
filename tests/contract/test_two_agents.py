"""Two agents on one ledger agree whichever is asked; only the one that leads decides, and the other takes over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.cases import CASES, SETTINGS, Case
from tests.contract.running import RunningAgent, running
from tests.simulator.aws.world import World

every = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(scope="module")
def other(agent: RunningAgent, short: Path, world: World) -> Iterator[RunningAgent]:
    """Another agent on the ledger of the first."""
    settings = {**SETTINGS, "http": {"socket": short / "other.sock"}}
    url = f"sqlite:///{agent.ledger.database.path}"
    with running(url, agent.clock, world.running.endpoint, directory=short, **settings) as made:
        made.serve()
        yield made


@pytest.fixture(scope="module")
def clients(client: httpx.Client, other: RunningAgent) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """A client of each."""
    with other.client() as second:
        yield client, second


def answered(client: httpx.Client, case: Case, name: str) -> dict[str, Any]:
    """The answer to the order of this name, but for whether it is new."""
    answer = client.post(case.path, json=case.order(name))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    found.pop(case.newness, None)
    return found


@every
def test_what_one_answered_the_other_answers_too(
    case: Case, agent: RunningAgent, other: RunningAgent, clients: tuple[httpx.Client, httpx.Client]
) -> None:
    one, two = clients
    assert answered(one, case, "two-1") == answered(two, case, "two-1")
    assert answered(two, case, "two-2") == answered(one, case, "two-2")
    assert case.count(agent) == case.count(other)
    path = f"/{case.decision}/{case.subject}/decisions"
    assert one.get(path).json() == two.get(path).json()


@every
def test_many_that_ask_both_at_once_have_one_answer_each(
    case: Case, agent: RunningAgent, clients: tuple[httpx.Client, httpx.Client]
) -> None:
    before = case.count(agent)
    names = [f"at-once-{n}" for n in range(6)]
    with ThreadPoolExecutor(4) as threads:
        # Every order is given to both agents.
        answers = list(threads.map(lambda n: answered(clients[n % 2], case, names[n // 2]), range(2 * len(names))))
    assert answers[::2] == answers[1::2]
    decided = [answer["decision_id"] for answer in answers[::2] if "decision_id" in answer and not case.decides_in_turn]
    if decided:
        numbers = sorted(int(re.sub(r"\D+", "", one.rpartition("-")[2])) for one in decided)
        assert numbers == list(range(before + 1, before + 1 + len(names)))
    assert case.count(agent) == before + len(decided)


@pytest.mark.parametrize("case", [case for case in CASES if case.conflict], ids=str)
def test_one_id_with_two_contents_at_once_stands_for_one(
    case: Case, clients: tuple[httpx.Client, httpx.Client]
) -> None:
    bodies = (case.order("contents"), case.order("contents") | case.others[0])
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda n: clients[n].post(case.path, json=bodies[n]).status_code, range(2)))
    assert sorted(answers) == [200, 409]


@pytest.mark.parametrize("case", [case for case in CASES if case.decides_in_turn], ids=str)
def test_one_that_no_longer_leads_decides_nothing_and_the_other_goes_on(
    case: Case, agent: RunningAgent, other: RunningAgent, clients: tuple[httpx.Client, httpx.Client]
) -> None:
    before = case.count(agent)
    answered(clients[0], case, "taken-over")
    other.lead("other")
    try:
        agent.clock.advance(3600.0)
        rows = agent.ledger.newest_seq()
        report = agent.turn(case.decision)
        assert report.failure or report.events
        assert (case.count(agent), agent.ledger.newest_seq()) == (before, rows)
        assert other.turn(case.decision).failure is None
        assert case.count(agent) == case.count(other) == before + 1
    finally:
        agent.lead()
