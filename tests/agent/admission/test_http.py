"""Admission over HTTP: what is asked and told, what comes back, and what is refused how."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.api.app import create_app
from agent.api.server import HttpServer
from agent.decisions.part import Host
from agent.decisions.parts import parts_of
from agent.ledger import Ledger
from agent.settings import Settings
from agent.view.board import ServiceBoard
from agent.view.view import AgentParts, AgentView
from collectors.intake import IntakeCounters
from domain.clock import VirtualClock
from tests.agent.admission.clusters import START

READER, ASKER, OPERATOR = "reading-token-0123456789", "asking-token-0246813579", "operating-token-9876543210"
MAIN = {"main": {"capacity_cores": 1000, "preset": "K", "kappa": 2.2, "moments": "ab_fast"}}
TWO = {**MAIN, "east": {"capacity_cores": 50, "policy": "zeroth", "threshold_cores": 51}}

Open = Callable[..., HttpServer]


@pytest.fixture
def opened(ledger: Ledger, clock: VirtualClock) -> Iterator[Open]:
    """Serve clusters on a socket, and on TCP where a port is given."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    running: list[HttpServer] = []

    def start(clusters: dict[str, Any], mode: str = "act", **http: Any) -> HttpServer:
        given = {"mode": mode, "clusters": clusters, "http": {"socket": directory / "s.sock", **http}}
        settings = Settings.model_validate(given)
        parts = AgentParts(
            settings=settings,
            board=ServiceBoard(START),
            ledger=ledger,
            now=clock.now,
            monotonic=clock.monotonic,
            parts=parts_of(Host(ledger, settings, clock)),
            collectors=dict,
            intake=IntakeCounters,
            aws_calls=dict,
        )
        server = HttpServer(create_app(AgentView(parts)), settings)
        server.start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()
    shutil.rmtree(directory)


@pytest.fixture
def client(opened: Open) -> Iterator[httpx.Client]:
    with over_socket(opened(MAIN)) as made:
        yield made


def over_socket(server: HttpServer) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(server.path))
    return httpx.Client(transport=transport, base_url="http://localhost/api/v1", timeout=30.0)


def told(**fields: Any) -> dict[str, Any]:
    return {"event_id": "e1", "kind": "started", "cores": 16, "time": START, **fields}


class TestAskingToComeIn:
    def test_is_answered_with_the_decision_and_found_again_under_its_id(self, client: httpx.Client) -> None:
        answer = client.post("/admissions", json={"deployment_id": "shop-42", "cores": 16, "requested_by": "ada"})
        assert answer.status_code == 200
        found = answer.json()
        assert (found["admit"], found["reason"], found["decision_id"]) == (True, "admitted", "main-a1")
        assert (found["cluster"], found["deployment_id"], found["requested_by"]) == ("main", "shop-42", "ada")
        assert found["top_expected"][0]["deployment_id"] == "shop-42"
        again = client.get("/admissions/main-a1").json()
        assert {name: again[name] for name in found} == found
        assert again["lines"][0].startswith("main-a1  ")
        assert client.get("/clusters/main/admissions").json() == [found]
        assert client.get("/clusters/main").json()["total_cores"] == 16

    def test_a_refusal_is_an_answer_too(self, client: httpx.Client) -> None:
        answer = client.post("/admissions", json={"deployment_id": "huge", "cores": 1001})
        assert answer.status_code == 200
        assert (answer.json()["admit"], answer.json()["reason"]) == (False, "rejected_feasibility")

    def test_with_what_was_seen_of_it_or_with_the_kinds_it_may_be_of(self, client: httpx.Client) -> None:
        seen = {"deaths": 5, "core_hours": 40, "scale_outs": 5, "gap_hours": 300, "extra_cores": 12, "size_draws": 5}
        one = client.post("/admissions", json={"deployment_id": "a", "cores": 4, "observations": [seen]}).json()
        assert one["prior"] == {"kind": "observations", "observations": 5.0, "labels": [], "named": None}
        kinds = [{**seen, "label": "night", "weight": 3}, {**seen, "extra_cores": 0, "label": "day"}]
        two = client.post("/admissions", json={"deployment_id": "b", "cores": 9, "observations": kinds}).json()
        labels = {item["label"]: item["weight"] for item in two["prior"]["labels"]}
        assert two["prior"]["kind"] == "mixture"
        assert sum(labels.values()) == pytest.approx(1.0)
        assert labels["night"] > 0.75

    def test_with_a_label_and_an_owner(self, client: httpx.Client) -> None:
        names = {"label": "batch", "owner": "ada"}
        asked = client.post("/admissions", json={"deployment_id": "a", "cores": 4, **names}).json()
        assert {name: asked[name] for name in names} == names
        started = {**told(cores=4), "label": "web", "owner": "ada"}
        assert client.post("/deployments/there/events", json=started).status_code == 200
        for wrong in ("a b", "x" * 65):
            answer = client.post("/admissions", json={"deployment_id": "b", "cores": 4, "label": wrong})
            assert (answer.status_code, answer.json()["wrong"][0]["field"]) == (422, "body.label")

    def test_in_a_batch_each_knows_of_those_before(self, client: httpx.Client) -> None:
        orders = [{"deployment_id": f"d{n}", "cores": 400} for n in range(3)]
        answer = client.post("/admissions/batch", json={"admissions": orders})
        assert answer.status_code == 200
        assert [item["decision_id"] for item in answer.json()] == ["main-a1", "main-a2", "main-a3"]
        taken = [item["total_cores"] for item in answer.json()]
        admitted = [item["admit"] for item in answer.json()]
        assert taken == [400 * sum(admitted[:n]) for n in range(3)]
        assert not all(admitted)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("field", "body"),
        [
            ("body.cores", {"deployment_id": "a", "cores": 0}),
            ("body.cores", {"deployment_id": "a", "cores": "many"}),
            ("body.cores", {"deployment_id": "a"}),
            ("body.deployment_id", {"deployment_id": "", "cores": 1}),
            ("body.colour", {"deployment_id": "a", "cores": 1, "colour": "red"}),
            ("body.observations.0.deaths", {"deployment_id": "a", "cores": 1, "observations": [{"deaths": -1}]}),
            ("body.cores", {"deployment_id": "a", "cores": True}),
            ("body.cores", {"deployment_id": "a", "cores": "1"}),
            ("body.deployment_id", {"deployment_id": "a\x00", "cores": 1}),
            ("body.observations.0.deaths", {"deployment_id": "a", "cores": 1, "observations": [{"deaths": False}]}),
        ],
    )
    def test_with_a_wrong_value_names_the_field_and_decides_nothing(
        self, client: httpx.Client, field: str, body: dict[str, Any]
    ) -> None:
        answer = client.post("/admissions", json=body)
        assert answer.status_code == 422
        assert [wrong["field"] for wrong in answer.json()["wrong"]] == [field]
        assert client.get("/clusters/main").json()["decisions"] == 0

    @pytest.mark.parametrize(
        ("route", "body"),
        [
            ("/admissions", {"deployment_id": "a", "cores": 1, "cluster": "west"}),
            ("/admissions/batch", {"admissions": [{"deployment_id": "a", "cores": 1}], "cluster": "west"}),
            ("/deployments/a/events", {**told(), "cluster": "west"}),
            ("/deployments/events", {"events": [{**told(), "deployment_id": "a"}], "cluster": "west"}),
        ],
    )
    def test_an_unknown_cluster_is_404_and_those_there_are_are_named(
        self, client: httpx.Client, route: str, body: dict[str, Any]
    ) -> None:
        answer = client.post(route, json=body)
        assert answer.status_code == 404
        assert answer.json()["wrong"] == [{"field": "cluster", "remedy": "choose one of: main"}]
        assert client.get("/clusters/main").json()["decisions"] == 0


LONG_NUMBERS = dict.fromkeys(
    ("core_hours", "scale_outs", "gap_hours", "extra_cores", "size_draws", "weight"), 1.2345678901234567e-05
)


class TestTheLargestBatch:
    """As many as a batch takes, every text at its longest: the limits of the body leave room for it."""

    def test_of_requests_is_taken(self, client: httpx.Client) -> None:
        kinds = [{**LONG_NUMBERS, "deaths": 0.0, "label": f"{n}" * 200} for n in range(8)]
        asked = [
            {"deployment_id": f"{n:0255}", "cores": 1, "observations": kinds, "request_id": f"{n:0200}",
             "requested_by": "r" * 200, "cluster": "main", "label": "l" * 64, "owner": "o" * 64}
            for n in range(200)
        ]  # fmt: skip
        answer = client.post("/admissions/batch", json={"admissions": asked, "cluster": "main"})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()) == 200

    def test_of_events_is_taken(self, client: httpx.Client) -> None:
        refused = {"kind": "refused", "cores": 10_000_000, "cores_after": 1, "label": "l" * 64, "owner": "o" * 64}
        events = [
            {**told(event_id=f"{n:0255}", **(refused if n else {"cores": 1})), "deployment_id": "d" * 255}
            for n in range(200)
        ]
        answer = client.post("/deployments/events", json={"events": events})
        assert answer.status_code == 200, answer.text

    def test_one_request_in_the_longest_spelling_is_taken(self, client: httpx.Client) -> None:
        kinds = [{**LONG_NUMBERS, "deaths": 0.0, "label": "\U0001f600" * 199 + f"{n}"} for n in range(8)]
        asked = {"deployment_id": "\U0001f600" * 255, "cores": 1, "observations": kinds, "cluster": "main",
                 "request_id": "\U0001f600" * 200, "requested_by": "\U0001f600" * 200, "label": "l" * 64,
                 "owner": "o" * 64}  # fmt: skip
        body = json.dumps(asked)
        assert len(body) > 28_000
        answer = client.post("/admissions", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text

    @pytest.mark.parametrize(("route", "most"), [("/admissions", 32_768), ("/admissions/batch", 2**20)])
    def test_a_byte_more_than_the_limit_is_413(self, client: httpx.Client, route: str, most: int) -> None:
        json_type = {"Content-Type": "application/json"}
        assert client.post(route, content=b" " * most, headers=json_type).status_code == 400
        answer = client.post(route, content=b" " * (most + 1), headers=json_type)
        assert (answer.status_code, answer.json()["detail"]) == (413, f"keep the body below {most} bytes")


class TestTellingWhatHappened:
    def test_changes_the_cluster_once(self, client: httpx.Client) -> None:
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
        assert client.get("/clusters/main").json()["total_cores"] == 16

    def test_in_a_batch_all_or_nothing(self, client: httpx.Client, clock: VirtualClock) -> None:
        clock.advance(100.0)
        good = [
            {**told(), "deployment_id": "a"},
            {**told(event_id="e2", kind="scaled", cores=4, time=START + 5), "deployment_id": "a"},
        ]
        bad = {**told(event_id="e3", kind="scaled"), "deployment_id": "nobody"}
        refused = client.post("/deployments/events", json={"events": [*good, bad]})
        assert refused.status_code == 409
        assert refused.json()["wrong"][0]["field"] == "deployment_id"
        assert client.get("/clusters/main").json()["total_cores"] == 0
        taken = client.post("/deployments/events", json={"events": good})
        assert [item["cores"] for item in taken.json()] == [16, 20]

    @pytest.mark.exhaustive
    def test_ten_thousand_events_come_in_as_many_batches_as_they_need(self, client: httpx.Client) -> None:
        kinds = ["started", "scaled", "core_ended", *["refused"] * 17]
        events = [
            {"event_id": f"e{n}", "deployment_id": f"d{n % 500}", "kind": kinds[n // 500], "cores": 1, "time": START}
            for n in range(10_000)
        ]
        at_once = client.post("/deployments/events", json={"events": events})
        assert (at_once.status_code, at_once.json()["wrong"][0]["field"]) == (422, "body.events")
        too_many = client.post("/deployments/events", json={"events": [{"event_id": "e"}] * 201})
        assert (too_many.status_code, too_many.json()["wrong"][0]["field"]) == (422, "body.events")
        assert client.get("/clusters/main").json()["total_cores"] == 0
        for start in range(0, 10_000, 200):
            answer = client.post("/deployments/events", json={"events": events[start : start + 200]})
            assert [item["already_seen"] for item in answer.json()] == [False] * len(events[start : start + 200])
        again = client.post("/deployments/events", json={"events": events[-200:]})
        assert [item["already_seen"] for item in again.json()] == [True] * 200
        cluster = client.get("/clusters/main").json()
        assert (cluster["live"], cluster["total_cores"]) == (500, 500)
        assert (cluster["requests_month_to_date"], cluster["failures_month_to_date"]) == (9_000, 8_500)

    def test_out_of_order_names_both_times(self, client: httpx.Client) -> None:
        client.post("/deployments/shop/events", json=told())
        answer = client.post("/deployments/shop/events", json=told(event_id="e2", kind="scaled", time=START - 60))
        assert answer.status_code == 409
        (wrong,) = answer.json()["wrong"]
        assert wrong["field"] == "time"
        assert str(START) in wrong["remedy"]

    def test_of_an_unknown_deployment_or_kind(self, client: httpx.Client) -> None:
        unknown = client.post("/deployments/nobody/events", json=told(kind="scaled"))
        assert (unknown.status_code, unknown.json()["wrong"][0]["field"]) == (409, "deployment_id")
        odd = client.post("/deployments/nobody/events", json=told(kind="exploded"))
        assert (odd.status_code, odd.json()["wrong"][0]["field"]) == (422, "body.kind")


@pytest.fixture
def advised(opened: Open) -> Iterator[httpx.Client]:
    """An agent that only observes, as it does unless told otherwise."""
    with over_socket(opened(MAIN, mode="observe")) as made:
        yield made


class TestInObserveMode:
    def test_the_answer_is_advice_that_is_recorded_and_nothing_is_taken_in(self, advised: httpx.Client) -> None:
        asked = {"deployment_id": "shop", "cores": 16, "request_id": "r1"}
        found = advised.post("/admissions", json=asked).json()
        assert (found["advice"], found["admit"], found["reason"]) == (True, True, "admitted")
        again = advised.get(f"/admissions/{found['decision_id']}").json()
        assert {name: again[name] for name in found} == found
        cluster = advised.get("/clusters/main").json()
        assert (cluster["mode"], cluster["total_cores"], cluster["reserved"]) == ("observe", 0, 0)
        refused = advised.post("/admissions", json={"deployment_id": "huge", "cores": 1001}).json()
        assert (refused["advice"], refused["admit"], refused["reason"]) == (True, False, "rejected_feasibility")

    def test_asking_again_gets_the_same_advice_under_the_same_id(self, advised: httpx.Client) -> None:
        asked = {"deployment_id": "shop", "cores": 16, "request_id": "r1"}
        first = advised.post("/admissions", json=asked).json()
        assert advised.post("/admissions", json=asked).json() == first
        assert advised.get("/clusters/main").json()["decisions"] == 1

    def test_in_a_batch_each_is_judged_as_if_it_alone_asked(self, advised: httpx.Client) -> None:
        orders = [{"deployment_id": f"d{n}", "cores": 40} for n in (1, 2, 3, 2)]
        answers = advised.post("/admissions/batch", json={"admissions": orders}).json()
        assert [one["decision_id"] for one in answers] == ["main-a1", "main-a2", "main-a3", "main-a2"]
        assert {(one["advice"], one["admit"], one["total_cores"]) for one in answers} == {(True, True, 0)}
        assert len(advised.get("/clusters/main/admissions").json()) == 3

    def test_what_runs_already_is_told_by_events_and_counts_for_the_advice(self, advised: httpx.Client) -> None:
        there = [{**told(event_id=f"e{n}", cores=300), "deployment_id": f"old-{n}"} for n in range(3)]
        assert advised.post("/deployments/events", json={"events": there}).status_code == 200
        found = advised.post("/admissions", json={"deployment_id": "shop", "cores": 101}).json()
        assert (found["total_cores"], found["reason"], found["advice"]) == (900, "rejected_feasibility", True)

    def test_one_that_was_only_advised_on_has_to_start_before_anything_else(self, advised: httpx.Client) -> None:
        advised.post("/admissions", json={"deployment_id": "shop", "cores": 16})
        answer = advised.post("/deployments/shop/events", json=told(kind="scaled"))
        assert answer.status_code == 409
        remedy = "it is not in this cluster, as in observe mode asking takes nobody in: tell of its start first"
        assert answer.json()["wrong"] == [{"field": "deployment_id", "remedy": remedy}]
        assert advised.post("/deployments/shop/events", json=told()).json()["cores"] == 16
        assert advised.post("/deployments/shop/events", json=told(event_id="e2", kind="scaled")).json()["cores"] == 32

    def test_what_was_decided_while_the_agent_acted_stands(self, opened: Open) -> None:
        asked = {"deployment_id": "shop", "cores": 16, "request_id": "r1"}
        server = opened(MAIN)
        with over_socket(server) as client:
            decision = client.post("/admissions", json=asked).json()
        server.stop()
        with over_socket(opened(MAIN, mode="observe")) as client:
            assert client.post("/admissions", json=asked).json() == decision
            assert client.post("/admissions", json={"deployment_id": "shop", "cores": 16}).json() == decision
            assert client.get("/clusters/main").json()["total_cores"] == 16
            other = client.post("/admissions", json={"deployment_id": "shop", "cores": 8}).json()
            assert (other["reason"], other["advice"]) == ("rejected_input", True)

    def test_acting_again_decides_anew_whatever_was_advised(self, opened: Open) -> None:
        asked = {"deployment_id": "shop", "cores": 16, "request_id": "r1"}
        server = opened(MAIN, mode="observe")
        with over_socket(server) as client:
            advice = client.post("/admissions", json=asked).json()
        server.stop()
        with over_socket(opened(MAIN)) as client:
            decision = client.post("/admissions", json=asked).json()
            assert (decision["advice"], decision["admit"]) == (False, True)
            assert decision["decision_id"] != advice["decision_id"]
            assert client.get("/clusters/main").json()["total_cores"] == 16


class TestWhereThereIsNone:
    def test_of_that_name(self, client: httpx.Client) -> None:
        for path in ("/clusters/west", "/clusters/west/admissions", "/admissions/main-a9"):
            assert client.get(path).status_code == 404

    def test_of_several_clusters_one_must_be_named(self, opened: Open) -> None:
        with over_socket(opened(TWO)) as client:
            unnamed = client.post("/admissions", json={"deployment_id": "a", "cores": 4})
            assert unnamed.status_code == 422
            assert unnamed.json()["wrong"] == [{"field": "cluster", "remedy": "name one of: east, main"}]
            named = client.post("/admissions", json={"deployment_id": "a", "cores": 4, "cluster": "east"})
            assert named.json()["decision_id"] == "east-a1"
            assert [found["cluster"] for found in client.get("/clusters").json()] == ["east", "main"]

    def test_no_cluster_at_all_is_said(self, opened: Open) -> None:
        with over_socket(opened({})) as client:
            answer = client.post("/admissions", json={"deployment_id": "a", "cores": 4})
            assert answer.json()["wrong"] == [{"field": "cluster", "remedy": "name one of: (none is set)"}]
            assert client.get("/clusters").json() == []


def test_over_tcp_asking_needs_the_token_for_asking_or_the_operators(opened: Open) -> None:
    server = opened(MAIN, port=0, token=READER, ask_token=ASKER, operator_token=OPERATOR)
    body = {"deployment_id": "a", "cores": 4}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}/api/v1", timeout=30.0) as client:
        statuses = [
            client.post("/admissions", json=body, headers={"Authorization": f"Bearer {token}"}).status_code
            for token in ("wrong", READER, ASKER, OPERATOR)
        ]
        assert statuses == [401, 403, 200, 200]
        assert client.get("/clusters/main", headers={"Authorization": f"Bearer {READER}"}).json()["decisions"] == 1


def test_without_a_ledger_nothing_is_decided_and_the_client_may_try_again(client: httpx.Client, path: Path) -> None:
    client.post("/admissions", json={"deployment_id": "a", "cores": 4})
    away = path.with_suffix(".away")
    path.rename(away)
    refused = client.post("/admissions", json={"deployment_id": "b", "cores": 4})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "15")
    away.rename(path)
    answer = client.post("/admissions", json={"deployment_id": "b", "cores": 4})
    assert (answer.status_code, answer.json()["decision_id"], answer.json()["total_cores"]) == (200, "main-a2", 4)
