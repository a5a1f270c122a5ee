"""What every decision promises over HTTP: answers that stay, refusals that name the field, roles, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest

from agent.api.security import Role, roles_for
from domain.clock import VirtualClock
from tests.contract import running as running_agent
from tests.contract.cases import CASES, SETTINGS, START, TOKENS, Case
from tests.contract.running import ASKER, OPERATOR, READER, RunningAgent, over_tcp, running

JSON = {"Content-Type": "application/json"}
every = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture
def name() -> str:
    """An id that no other test has."""
    return f"n{next(NUMBERS)}"


NUMBERS: Iterator[int] = count(1)


@every
def test_an_order_is_answered_and_its_decision_is_found(
    case: Case, agent: RunningAgent, client: httpx.Client, name: str
) -> None:
    before = case.count(agent)
    answer = client.post(case.path, json=case.order(name))
    assert answer.status_code == 200, answer.text
    assert {key: answer.json()[key] for key in case.answer} == case.answer
    case.decide(agent)
    assert case.count(agent) == before + 1
    decision_id = case.decision_id(before + 1)
    listed = client.get(f"/{case.decision}/{case.subject}/decisions").json()["decisions"]
    assert (listed[0]["id"], listed[0]["decision"], listed[0]["subject"]) == (decision_id, case.decision, case.subject)
    assert listed[0]["sentence"]
    found = client.get(f"/decisions/{decision_id}").json()
    assert found["lines"][0].startswith(decision_id)
    assert client.get(f"/{case.decision}/decisions/{decision_id}").json() == found
    if not case.decides_in_turn:
        assert {key: found[key] for key in answer.json()} == answer.json()
    assert client.get(f"/decisions/{case.decision_id(9999)}").status_code == 404


@every
def test_the_same_order_again_has_the_same_answer_and_decides_nothing(
    case: Case, agent: RunningAgent, client: httpx.Client, name: str
) -> None:
    first = client.post(case.path, json=case.order(name)).json()
    before = case.count(agent)
    again = client.post(case.path, json=case.order(name)).json()
    assert case.count(agent) == before
    if case.newness:
        assert first.pop(case.newness) != again.pop(case.newness)
    assert again == first


@pytest.mark.parametrize("case", [case for case in CASES if case.conflict], ids=str)
def test_another_order_under_the_same_id_is_409(
    case: Case, agent: RunningAgent, client: httpx.Client, name: str
) -> None:
    first = client.post(case.path, json=case.order(name)).json()
    for other in case.others:
        answer = client.post(case.path, json=case.order(name) | other)
        assert (answer.status_code, answer.json()["wrong"][0]["field"]) == (409, case.conflict)
    again = client.post(case.path, json=case.order(name)).json()
    assert {key: again[key] for key in again if key != case.newness} == {
        key: first[key] for key in first if key != case.newness
    }


@every
def test_a_wrong_value_names_its_field_and_changes_nothing(
    case: Case, agent: RunningAgent, client: httpx.Client, name: str
) -> None:
    before = (agent.ledger.newest_seq(), case.count(agent))
    for field, change in case.wrong:
        body = {key: value for key, value in (case.order(name) | change).items() if value is not None}
        answer = client.post(case.path, json=body)
        (wrong,) = answer.json()["wrong"]
        assert (answer.status_code, wrong["field"].removeprefix("body.")) == (422, field), (change, answer.text)
        assert wrong["remedy"]
    assert (agent.ledger.newest_seq(), case.count(agent)) == before


@every
def test_a_subject_that_is_not_there_is_404_and_those_there_are_are_named(
    case: Case, client: httpx.Client, name: str
) -> None:
    if isinstance(case.unknown, str):
        answer = client.get(case.unknown)
    else:
        answer = client.post(case.path, json=case.order(name) | case.unknown)
    (wrong,) = answer.json()["wrong"]
    assert (answer.status_code, case.subject in wrong["remedy"]) == (404, True), answer.text
    assert client.get(f"/{case.decision}/west").status_code == 404
    assert client.get(f"/{case.decision}/west/decisions").status_code == 404
    assert case.subject in client.get(f"/{case.decision}").text


@every
def test_what_is_no_json_is_refused_and_a_large_body_is_not_read(case: Case, client: httpx.Client) -> None:
    most = 2**20 if case is TOKENS else 2**15
    assert client.post(case.path, content=b" " * most, headers=JSON).status_code == 400
    answer = client.post(case.path, content=b" " * (most + 1), headers=JSON)
    assert (answer.status_code, str(most) in answer.json()["detail"]) == (413, True)
    assert client.post(case.path, content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.post(case.path, content=b"[]", headers=JSON).status_code == 422


@every
def test_over_tcp_each_role_may_do_its_own(case: Case, agent: RunningAgent, name: str) -> None:
    assert agent.server is not None
    allowed = 200 if case.asked_by else 403
    for token, reads, asks in (
        ("wrong", 401, 401),
        (READER, 200, 403),
        (ASKER, allowed, allowed),
        (OPERATOR, 200, 200),
    ):
        with over_tcp(agent.server.port, token) as client:
            assert client.get(f"/api/v1/{case.decision}/{case.subject}").status_code == reads, token
            assert client.post(f"/api/v1{case.path}", json=case.order(name)).status_code == asks, token
    assert (Role.ASKER in roles_for("POST", f"/api/v1{case.path}")) == case.asked_by


@every
def test_a_pause_is_shown_and_lifted(case: Case, agent: RunningAgent, client: httpx.Client) -> None:
    def held() -> list[str]:
        lines = agent.part(case.decision).status(case.subject, agent.clock.now()).lines
        return [line for line in lines if "stocktaking" in line]

    order = {"subject": f"{case.decision}/{case.subject}", "owner": "ada", "reason": "stocktaking"}
    assert client.post("/pause", json=order).status_code == 200
    shown = held()
    assert client.post("/resume", json={"subject": case.subject, "owner": "ada"}).status_code == 200
    assert (len(shown), held()) == (1, [])


@pytest.mark.parametrize("case", [case for case in CASES if case is not TOKENS], ids=str)
def test_without_a_ledger_nothing_is_answered_and_the_client_may_try_again(
    case: Case, agent: RunningAgent, client: httpx.Client, name: str
) -> None:
    before = case.count(agent)
    bring_back: Callable[[], object] = agent.lose_ledger()
    try:
        refused = client.post(case.path, json=case.order(name))
    finally:
        bring_back()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "15")
    assert case.count(agent) == before
    assert client.post(case.path, json=case.order(name)).status_code == 200


def test_a_pause_holds_the_decision_that_is_named_where_each_has_a_subject_of_this_name(toy: None, short: Path) -> None:
    settings = {name: {"web": next(iter(described.values()))} for name, described in SETTINGS.items()}
    http = {"socket": short / "one.sock", **running_agent.TOKENS}
    with (
        running(f"sqlite:///{short}/one.db", VirtualClock(START), directory=short, http=http, **settings) as agent,
        agent.client() as client,
    ):
        decisions = [part.name for part in agent.parts if "web" in part.subjects()]
        assert sorted(decisions) == ["admission", "autoscaling", "deferral", "oversubscription", "placement"]
        refused = client.post("/pause", json={"fleet": "web", "owner": "ada", "reason": "a drill"})
        (wrong,) = refused.json()["wrong"]
        assert (refused.status_code, wrong["field"]) == (422, "fleet")
        assert ", ".join(f"{decision}/web" for decision in decisions) in wrong["remedy"]
        container = {"pool": "web", "request_id": "r1", "application": "shop", "count": 1}
        for decision in decisions:
            order = {"subject": f"{decision}/web", "owner": "ada"}
            answer = client.post("/pause", json={**order, "reason": "a drill"}).json()
            assert (answer["decision"], answer["subject"]) == (decision, "web")
            assert answer["fleet"] == ("web" if decision == "autoscaling" else None)
            assert [part.name for part in agent.parts if part.held("web", START)] == [decision]
            # The pool has no application yet, which is asked after its pauses.
            code = client.post("/placement/requests", json=container).status_code
            assert code == (409 if decision == "placement" else 404)
            assert client.post("/resume", json=order).json()["lifted"] is True
        assert not any(part.held("web", START) for part in agent.parts)
