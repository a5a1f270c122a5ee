"""Admission over HTTP: what is asked and told, what comes back, and advice in observe mode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.clock import VirtualClock
from tests.agent.admission.clusters import START
from tests.contract.running import RunningAgent, running
from tests.short_directory import short_directory

MAIN = {"capacity_cores": 1000, "preset": "K", "kappa": 2.2, "moments": "ab_fast"}
CLUSTERS = {f"c{n}": MAIN for n in range(24)}
"""More than there are tests, of which each has one of its own."""
NAMES = iter(CLUSTERS)
BASE = "/api/v1/admission"


@dataclass
class Cluster:
    """A cluster as a client sees it: orders name it, and so do paths that call it `main`."""

    name: str
    client: httpx.Client

    def post(self, path: str, *, json: dict[str, Any]) -> httpx.Response:
        return self.client.post(path, json={"cluster": self.name, **json})

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path.replace("main", self.name))

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/main").json()
        return found


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with short_directory() as made:
        yield made


@pytest.fixture(scope="module")
def agents(directory: Path) -> Iterator[dict[str, RunningAgent]]:
    """An agent that acts and one that observes, on one ledger."""
    clock, url = VirtualClock(START), f"sqlite:///{directory}/l.db"
    act, observe = ({"socket": directory / f"{mode}.sock"} for mode in ("act", "observe"))
    with (
        running(url, clock, directory=directory, clusters=CLUSTERS, http=act) as acting,
        running(url, clock, directory=directory, clusters=CLUSTERS, http=observe, mode="observe") as observing,
    ):
        yield {"act": acting, "observe": observing}


@pytest.fixture(scope="module")
def clients(agents: dict[str, RunningAgent]) -> Iterator[dict[str, httpx.Client]]:
    """A client of each."""
    with agents["act"].client(BASE) as acting, agents["observe"].client(BASE) as observing:
        yield {"act": acting, "observe": observing}


@pytest.fixture
def name() -> str:
    """The name of a cluster that no other test has."""
    return next(NAMES)


@pytest.fixture
def client(name: str, clients: dict[str, httpx.Client]) -> Cluster:
    return Cluster(name, clients["act"])


@pytest.fixture
def advised(name: str, clients: dict[str, httpx.Client]) -> Cluster:
    """The same cluster in the agent that observes."""
    return Cluster(name, clients["observe"])


def told(**fields: Any) -> dict[str, Any]:
    return {"event_id": "e1", "kind": "started", "cores": 16, "time": START, **fields}


class TestAskingToComeIn:
    def test_a_refusal_is_an_answer_too(self, client: Cluster) -> None:
        answer = client.post("/requests", json={"deployment_id": "huge", "cores": 1001})
        assert answer.status_code == 200
        assert (answer.json()["admit"], answer.json()["reason"]) == (False, "rejected_feasibility")

    def test_with_what_was_seen_of_it_or_with_the_kinds_it_may_be_of(self, client: Cluster) -> None:
        seen = {"deaths": 5, "core_hours": 40, "scale_outs": 5, "gap_hours": 300, "extra_cores": 12, "size_draws": 5}
        one = client.post("/requests", json={"deployment_id": "a", "cores": 4, "observations": [seen]}).json()
        assert one["prior"] == {"kind": "observations", "observations": 5.0, "labels": [], "named": None}
        kinds = [{**seen, "label": "night", "weight": 3}, {**seen, "extra_cores": 0, "label": "day"}]
        two = client.post("/requests", json={"deployment_id": "b", "cores": 9, "observations": kinds}).json()
        labels = {item["label"]: item["weight"] for item in two["prior"]["labels"]}
        assert two["prior"]["kind"] == "mixture"
        assert sum(labels.values()) == pytest.approx(1.0)
        assert labels["night"] > 0.75

    def test_with_a_label_and_an_owner(self, client: Cluster) -> None:
        names = {"label": "batch", "owner": "ada"}
        asked = client.post("/requests", json={"deployment_id": "a", "cores": 4, **names}).json()
        assert {name: asked[name] for name in names} == names
        started = {**told(cores=4), "label": "web", "owner": "ada"}
        assert client.post("/deployments/there/events", json=started).status_code == 200

    def test_in_a_batch_each_knows_of_those_before(self, client: Cluster) -> None:
        orders = [{"deployment_id": f"d{n}", "cores": 400} for n in range(3)]
        answer = client.post("/requests/batch", json={"admissions": orders})
        assert answer.status_code == 200
        assert [item["decision_id"] for item in answer.json()] == [f"{client.name}-a{n}" for n in (1, 2, 3)]
        taken = [item["total_cores"] for item in answer.json()]
        admitted = [item["admit"] for item in answer.json()]
        assert taken == [400 * sum(admitted[:n]) for n in range(3)]
        assert not all(admitted)

    @pytest.mark.parametrize(
        ("route", "body"),
        [
            ("/requests/batch", {"admissions": [{"deployment_id": "a", "cores": 1}], "cluster": "west"}),
            ("/deployments/a/events", {**told(), "cluster": "west"}),
            ("/deployments/events", {"events": [{**told(), "deployment_id": "a"}], "cluster": "west"}),
        ],
    )
    def test_an_unknown_cluster_is_404_and_those_there_are_are_named(
        self, client: Cluster, route: str, body: dict[str, Any]
    ) -> None:
        answer = client.post(route, json=body)
        assert answer.status_code == 404
        (wrong,) = answer.json()["wrong"]
        assert (wrong["field"], client.name in wrong["remedy"]) == ("cluster", True)
        assert client.shown()["decisions"] == 0


LONG_NUMBERS = dict.fromkeys(
    ("core_hours", "scale_outs", "gap_hours", "extra_cores", "size_draws", "weight"), 1.2345678901234567e-05
)


class TestTheLargestBatch:
    """As many as a batch takes, every text at its longest: the limits of the body leave room for it."""

    def test_of_requests_is_taken(self, client: Cluster) -> None:
        kinds = [{**LONG_NUMBERS, "deaths": 0.0, "label": f"{n}" * 200} for n in range(8)]
        asked = [
            {"deployment_id": f"{n:0255}", "cores": 1, "observations": kinds, "request_id": f"{n:0200}",
             "requested_by": "r" * 200, "cluster": client.name, "label": "l" * 64, "owner": "o" * 64}
            for n in range(200)
        ]  # fmt: skip
        answer = client.post("/requests/batch", json={"admissions": asked})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()) == 200

    def test_of_events_is_taken(self, client: Cluster) -> None:
        refused = {"kind": "refused", "cores": 10_000_000, "cores_after": 1, "label": "l" * 64, "owner": "o" * 64}
        events = [
            {**told(event_id=f"{n:0255}", **(refused if n else {"cores": 1})), "deployment_id": "d" * 255}
            for n in range(200)
        ]
        answer = client.post("/deployments/events", json={"events": events})
        assert answer.status_code == 200, answer.text

    def test_one_request_in_the_longest_spelling_is_taken(self, client: Cluster) -> None:
        kinds = [{**LONG_NUMBERS, "deaths": 0.0, "label": "\U0001f600" * 199 + f"{n}"} for n in range(8)]
        asked = {"deployment_id": "\U0001f600" * 255, "cores": 1, "observations": kinds, "cluster": client.name,
                 "request_id": "\U0001f600" * 200, "requested_by": "\U0001f600" * 200, "label": "l" * 64,
                 "owner": "o" * 64}  # fmt: skip
        body = json.dumps(asked)
        assert len(body) > 28_000
        answer = client.client.post("/requests", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text

    @pytest.mark.parametrize(("route", "most"), [("/requests/batch", 2**20)])
    def test_a_byte_more_than_the_limit_is_413(self, clients: dict[str, httpx.Client], route: str, most: int) -> None:
        client, json_type = clients["act"], {"Content-Type": "application/json"}
        assert client.post(route, content=b" " * most, headers=json_type).status_code == 400
        answer = client.post(route, content=b" " * (most + 1), headers=json_type)
        assert (answer.status_code, answer.json()["detail"]) == (413, f"keep the body below {most} bytes")


class TestTellingWhatHappened:
    def test_changes_the_cluster_once(self, client: Cluster) -> None:
        first = client.post("/deployments/shop-42/events", json=told())
        assert first.status_code == 200
        assert first.json() == {
            "event_id": "e1",
            "deployment_id": "shop-42",
            "cores": 16,
            "already_seen": False,
            "repaired": "",
        }
        again = client.post("/deployments/shop-42/events", json=told())
        assert (again.json()["cores"], again.json()["already_seen"]) == (16, True)
        assert client.shown()["total_cores"] == 16

    def test_in_a_batch_all_or_nothing(self, client: Cluster, agents: dict[str, RunningAgent]) -> None:
        agents["act"].clock.advance(100.0)
        good = [
            {**told(), "deployment_id": "a"},
            {**told(event_id="e2", kind="scaled", cores=4, time=START + 5), "deployment_id": "a"},
        ]
        bad = {**told(event_id="e3", kind="scaled"), "deployment_id": "nobody"}
        refused = client.post("/deployments/events", json={"events": [*good, bad]})
        assert refused.status_code == 409
        assert refused.json()["wrong"][0]["field"] == "deployment_id"
        assert client.shown()["total_cores"] == 0
        taken = client.post("/deployments/events", json={"events": good})
        assert [item["cores"] for item in taken.json()] == [16, 20]

    @pytest.mark.exhaustive
    def test_ten_thousand_events_come_in_as_many_batches_as_they_need(self, client: Cluster) -> None:
        kinds = ["started", "scaled", "core_ended", *["refused"] * 17]
        events = [
            {"event_id": f"e{n}", "deployment_id": f"d{n % 500}", "kind": kinds[n // 500], "cores": 1, "time": START}
            for n in range(10_000)
        ]
        at_once = client.post("/deployments/events", json={"events": events})
        assert (at_once.status_code, at_once.json()["wrong"][0]["field"]) == (422, "body.events")
        too_many = client.post("/deployments/events", json={"events": [{"event_id": "e"}] * 201})
        assert (too_many.status_code, too_many.json()["wrong"][0]["field"]) == (422, "body.events")
        assert client.shown()["total_cores"] == 0
        for start in range(0, 10_000, 200):
            answer = client.post("/deployments/events", json={"events": events[start : start + 200]})
            assert [item["already_seen"] for item in answer.json()] == [False] * len(events[start : start + 200])
        again = client.post("/deployments/events", json={"events": events[-200:]})
        assert [item["already_seen"] for item in again.json()] == [True] * 200
        cluster = client.shown()
        assert (cluster["live"], cluster["total_cores"]) == (500, 500)
        assert (cluster["requests_month_to_date"], cluster["failures_month_to_date"]) == (9_000, 8_500)

    def test_of_an_unknown_deployment_or_kind(self, client: Cluster) -> None:
        unknown = client.post("/deployments/nobody/events", json=told(kind="scaled"))
        assert (unknown.status_code, unknown.json()["wrong"][0]["field"]) == (409, "deployment_id")
        odd = client.post("/deployments/nobody/events", json=told(kind="exploded"))
        assert (odd.status_code, odd.json()["wrong"][0]["field"]) == (422, "body.kind")


class TestInObserveMode:
    def test_the_answer_is_advice_that_is_recorded_and_nothing_is_taken_in(self, advised: Cluster) -> None:
        asked = {"deployment_id": "shop", "cores": 16, "request_id": "r1"}
        found = advised.post("/requests", json=asked).json()
        assert (found["advice"], found["admit"], found["reason"]) == (True, True, "admitted")
        again = advised.get(f"/decisions/{found['decision_id']}").json()
        assert {name: again[name] for name in found} == found
        cluster = advised.shown()
        assert (cluster["mode"], cluster["total_cores"], cluster["reserved"]) == ("observe", 0, 0)
        refused = advised.post("/requests", json={"deployment_id": "huge", "cores": 1001}).json()
        assert (refused["advice"], refused["admit"], refused["reason"]) == (True, False, "rejected_feasibility")

    def test_asking_again_gets_the_same_advice_under_the_same_id(self, advised: Cluster) -> None:
        asked = {"deployment_id": "shop", "cores": 16, "request_id": "r1"}
        first = advised.post("/requests", json=asked).json()
        assert advised.post("/requests", json=asked).json() == first
        assert advised.shown()["decisions"] == 1

    def test_in_a_batch_each_is_judged_as_if_it_alone_asked(self, advised: Cluster) -> None:
        orders = [{"deployment_id": f"d{n}", "cores": 40} for n in (1, 2, 3, 2)]
        answers = advised.post("/requests/batch", json={"admissions": orders}).json()
        assert [one["decision_id"] for one in answers] == [f"{advised.name}-a{n}" for n in (1, 2, 3, 2)]
        assert {(one["advice"], one["admit"], one["total_cores"]) for one in answers} == {(True, True, 0)}
        assert len(advised.get("/main/requests").json()) == 3

    def test_what_runs_already_is_reported_by_events_and_counts_for_the_advice(self, advised: Cluster) -> None:
        there = [{**told(event_id=f"e{n}", cores=300), "deployment_id": f"old-{n}"} for n in range(3)]
        assert advised.post("/deployments/events", json={"events": there}).status_code == 200
        found = advised.post("/requests", json={"deployment_id": "shop", "cores": 101}).json()
        assert (found["total_cores"], found["reason"], found["advice"]) == (900, "rejected_feasibility", True)

    def test_one_that_was_only_advised_on_has_to_start_before_anything_else(self, advised: Cluster) -> None:
        advised.post("/requests", json={"deployment_id": "shop", "cores": 16})
        answer = advised.post("/deployments/shop/events", json=told(kind="scaled"))
        assert answer.status_code == 409
        assert answer.json()["wrong"][0]["field"] == "deployment_id"
        assert advised.post("/deployments/shop/events", json=told()).json()["cores"] == 16
        assert advised.post("/deployments/shop/events", json=told(event_id="e2", kind="scaled")).json()["cores"] == 32

    def test_what_was_decided_by_one_that_acts_stays(self, client: Cluster, advised: Cluster) -> None:
        asked = {"deployment_id": "shop", "cores": 16, "request_id": "r1"}
        decision = client.post("/requests", json=asked).json()
        assert advised.post("/requests", json=asked).json() == decision
        assert advised.post("/requests", json={"deployment_id": "shop", "cores": 16}).json() == decision
        assert advised.shown()["total_cores"] == 16
        other = advised.post("/requests", json={"deployment_id": "shop", "cores": 8}).json()
        assert (other["reason"], other["advice"]) == ("rejected_input", True)

    def test_one_that_acts_decides_anew_after_any_advice(self, client: Cluster, advised: Cluster) -> None:
        asked = {"deployment_id": "shop", "cores": 16, "request_id": "r1"}
        advice = advised.post("/requests", json=asked).json()
        decision = client.post("/requests", json=asked).json()
        assert (decision["advice"], decision["admit"]) == (False, True)
        assert decision["decision_id"] != advice["decision_id"]
        assert client.shown()["total_cores"] == 16


def test_of_several_clusters_one_must_be_named(clients: dict[str, httpx.Client]) -> None:
    unnamed = clients["act"].post("/requests", json={"deployment_id": "a", "cores": 4})
    (wrong,) = unnamed.json()["wrong"]
    assert (unnamed.status_code, wrong["field"]) == (422, "cluster")
    assert all(name in wrong["remedy"] for name in CLUSTERS)
    assert [found["cluster"] for found in clients["act"].get(f"http://localhost{BASE}").json()] == sorted(CLUSTERS)
