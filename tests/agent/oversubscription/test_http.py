"""Rates over HTTP and on the page: as recorded, for one request, and back in force once somebody re-arms."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from agent.oversubscription.decision import OversubscriptionPart
from domain.clock import VirtualClock
from tests.agent.oversubscription.pools import START
from tests.contract.running import RunningAgent, running
from tests.short_directory import short_directory

BASE = "/api/v1/oversubscription"
SIZES = {"machines": 3, "machine_cores": 48, "machine_memory_gb": 512}
POOLS = {name: {**SIZES, "subscribers": {"ours": {"internal": True}, "theirs": {}}} for name in ("east", "north")}


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    """An agent whose pools were decided once."""
    with short_directory() as directory:
        http = {"socket": directory / "s.sock"}
        with running(
            f"sqlite:///{directory}/l.db", VirtualClock(START), directory=directory, pools=POOLS, http=http
        ) as one:
            one.lead().turn("oversubscription")
            yield one


@pytest.fixture(scope="module")
def client(agent: RunningAgent) -> Iterator[httpx.Client]:
    with agent.client("") as made:
        yield made


def test_a_pool_shows_rates_reasons_and_risk(client: httpx.Client) -> None:
    pool, _ = client.get(BASE).json()
    rows = {row["subscriber"]: row for row in pool["decision"]["subscribers"]}
    assert rows["theirs"]["reasons"] == ["opted_out"]
    assert rows["theirs"]["rate"] == rows["ours"]["rate"] == 1.0
    assert pool["decision"]["risk"]["violation"] == 0.0
    assert pool["problem"] == "no inventory file is set"
    assert client.get(f"{BASE}/east").json()["pool"] == "east"


def test_a_request_names_a_machine_and_is_listed_by_its_kind(client: httpx.Client) -> None:
    order = {"subscriber": "theirs", "cores": 4, "memory_gb": 16, "request_id": "r1", "pool": "north"}
    answer = client.post(f"{BASE}/requests", json=order).json()
    assert (answer["rate"], answer["machine"], answer["decision_id"]) == (1.0, "spare-1", "north-o2")
    listed = client.get(f"{BASE}/north/rates").json()
    assert [one["decision_id"] for one in listed] == ["north-o2", "north-o1"]
    assert [one["decision_id"] for one in client.get(f"{BASE}/north/rates?kind=hour").json()] == ["north-o1"]


def test_a_pool_that_is_not_there_is_not_rearmed_and_one_in_force_neither(client: httpx.Client) -> None:
    order = {"by": "ada", "reason": "looked into it"}
    unknown = client.post(f"{BASE}/rearm", json={**order, "pool": "west"})
    assert (unknown.status_code, unknown.json()["wrong"][0]["field"]) == (404, "pool")
    answer = client.post(f"{BASE}/rearm", json={**order, "pool": "east"})
    assert (answer.status_code, "not rolled back" in answer.text) == (409, True)


def test_the_page_shows_rates(client: httpx.Client) -> None:
    page = client.get("/").text
    assert "Pool east" in page
    assert '<th scope="row">theirs</th><td>rate 1, ' in page
    assert "opted out" in page


def test_other_parts_read_what_its_machines_have_and_what_nothing_reserves(agent: RunningAgent) -> None:
    part = agent.part("oversubscription")
    assert isinstance(part, OversubscriptionPart)
    found, pool = part.capacity("east"), part.pools["east"]
    assert found is not None
    assert pool.loads is not None
    assert found.total == pool.rules.machine_cores * len(pool.loads.names) > 0.0
    assert found.spare is None, "without an inventory nothing is known to be free"
