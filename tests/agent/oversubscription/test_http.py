"""Rates over HTTP and on the page: as recorded, for one request, and back in force once somebody re-arms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent.oversubscription.part import OversubscriptionPart
from agent.web.router import create_page_router
from tests.agent.api.conftest import over_socket, socket_directory, stage
from tests.agent.api.conftest import running as turned
from tests.agent.api.running import Running

__all__ = ["socket_directory", "stage", "turned"]

BASE = "/api/v1/oversubscription"


@pytest.fixture
def client(turned: Running, socket_directory: Path) -> Iterator[httpx.Client]:
    """A client of an agent whose pool was decided once."""
    turned.turn_pools()
    server = turned.server(create_page_router(turned.view), socket=socket_directory / "http.sock")
    server.start()
    with over_socket(server) as made:
        yield made
    server.stop()


def test_a_pool_tells_rates_reasons_and_risk(client: httpx.Client) -> None:
    (pool,) = client.get(BASE).json()
    rows = {row["subscriber"]: row for row in pool["decision"]["subscribers"]}
    assert rows["theirs"]["reasons"] == ["opted_out"]
    assert rows["theirs"]["rate"] == rows["ours"]["rate"] == 1.0
    assert pool["decision"]["risk"]["violation"] == 0.0
    assert pool["problem"] == "no inventory file is set"
    assert client.get(f"{BASE}/pools/east").json()["pool"] == "east"
    assert client.get(f"{BASE}/pools/west").status_code == 404


def test_a_request_is_answered_and_can_be_looked_up(client: httpx.Client) -> None:
    order = {"subscriber": "theirs", "cores": 4, "memory_gb": 16, "request_id": "r1"}
    answer = client.post(f"{BASE}/requests", json=order).json()
    assert (answer["rate"], answer["machine"]) == (1.0, "spare-1")
    assert client.post(f"{BASE}/requests", json=order).json() == answer
    again = client.get(f"{BASE}/decisions/{answer['decision_id']}").json()
    assert {name: again[name] for name in answer} == answer
    listed = client.get(f"{BASE}/pools/east/decisions").json()
    assert [one["decision_id"] for one in listed] == ["east-o2", "east-o1"]
    assert [one["decision_id"] for one in client.get(f"{BASE}/pools/east/decisions?kind=hour").json()] == ["east-o1"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("order", "field"),
    [
        ({"subscriber": "ours", "cores": 49, "memory_gb": 16}, "cores"),
        ({"subscriber": "ours", "cores": 0, "memory_gb": 16}, "cores"),
        ({"subscriber": "ours", "cores": 4, "memory_gb": 600}, "memory_gb"),
        ({"subscriber": "ours", "cores": 4}, "memory_gb"),
        ({"subscriber": "a b", "cores": 4, "memory_gb": 1}, "subscriber"),
        ({"subscriber": "ours", "cores": 4, "memory_gb": 1, "speed": 3}, "speed"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(client: httpx.Client, order: dict[str, object], field: str) -> None:
    answer = client.post(f"{BASE}/requests", json=order)
    assert answer.status_code == 422
    assert field in answer.text


@pytest.mark.parametrize(
    ("path", "order"),
    [
        ("requests", {"subscriber": "ours", "cores": 4, "memory_gb": 16, "pool": "west"}),
        ("rearm", {"by": "ada", "reason": "x", "pool": "west"}),
    ],
)
def test_an_unknown_pool_is_404(client: httpx.Client, path: str, order: dict[str, object]) -> None:
    answer = client.post(f"{BASE}/{path}", json=order)
    assert answer.status_code == 404
    assert answer.json()["wrong"] == [{"field": "pool", "remedy": "choose one of: east"}]


@pytest.mark.exhaustive
@pytest.mark.parametrize("cores", [True, "4"])
def test_a_switch_or_a_text_is_no_number(client: httpx.Client, cores: object) -> None:
    answer = client.post(f"{BASE}/requests", json={"subscriber": "ours", "cores": cores, "memory_gb": 16})
    assert answer.status_code == 422
    assert answer.json()["wrong"][0]["field"] == "body.cores"


def test_there_is_nothing_to_rearm_while_nothing_was_rolled_back(client: httpx.Client) -> None:
    answer = client.post(f"{BASE}/rearm", json={"by": "ada", "reason": "looked into it"})
    assert answer.status_code == 409
    assert "not rolled back" in answer.text


def test_the_page_shows_rates_and_machines(client: httpx.Client) -> None:
    client.post(f"{BASE}/requests", json={"subscriber": "ours", "cores": 4, "memory_gb": 16})
    page = client.get("/").text
    assert "Pool east" in page
    assert '<th scope="row">theirs</th><td>rate 1, ' in page
    assert "opted out" in page


def test_other_parts_read_what_its_machines_have_and_what_nothing_reserves(turned: Running) -> None:
    turned.turn_pools()
    part = next(one for one in turned.parts.parts if isinstance(one, OversubscriptionPart))
    found, pool = part.capacity("east"), part.pools["east"]
    assert found is not None
    assert pool.loads is not None
    assert found.there == pool.rules.machine_cores * len(pool.loads.names) > 0.0
    assert found.spare is None, "without an inventory nothing is known to be free"
