"""Placement over HTTP: two phases, bad input, what would be, hosts, and Kubernetes' extender."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.api.app import create_app
from agent.api.server import HttpServer
from agent.decisions.part import Host, Turn
from agent.decisions.parts import Parts, parts_of
from agent.decisions.turn import TickReport
from agent.ledger import Ledger
from agent.placement.part import PlacementPart
from agent.settings import Settings
from agent.view.board import ServiceBoard
from agent.view.view import AgentParts, AgentView
from collectors.intake import IntakeCounters
from domain.clock import BothTimes, VirtualClock
from domain.decisions import Reason
from tests.agent.placement.hosts import START, app, inventory, kind

JSON = {"Content-Type": "application/json"}


class Agent:
    """Pools served on a socket; a turn is made when the test says so."""

    def __init__(self, directory: Path, ledger: Ledger, clock: VirtualClock, placements: dict[str, Any]) -> None:
        self.ledger, self.clock = ledger, clock
        given = {"mode": "act", "placements": placements, "http": {"socket": directory / "s.sock"}}
        self.settings = Settings.model_validate({**given, "state_directory": directory})
        self.parts: Parts = parts_of(Host(ledger, self.settings, clock))
        self.part = next(part for part in self.parts if isinstance(part, PlacementPart))
        self.epoch = 1
        self.view = AgentView(
            AgentParts(
                settings=self.settings,
                board=ServiceBoard(START),
                ledger=ledger,
                now=clock.now,
                monotonic=clock.monotonic,
                parts=self.parts,
                collectors=dict,
                intake=IntakeCounters,
                aws_calls=dict,
            )
        )
        self.server = HttpServer(create_app(self.view), self.settings)

    def turn(self) -> TickReport:
        """Turn the part once, as the leader."""
        now = self.clock.now()
        return self.part.turn(Turn(now, BothTimes(now, self.clock.monotonic()), self.epoch, TickReport(now)))

    def client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.server.path))
        return httpx.Client(transport=transport, base_url="http://localhost/api/v1/placement", timeout=30.0)


Open = Callable[..., Agent]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(inventory()))
    return path


@pytest.fixture
def opened(ledger: Ledger, clock: VirtualClock) -> Iterator[Open]:
    """Serve pools, each described by its settings."""
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    running: list[Agent] = []

    def start(**placements: dict[str, Any]) -> Agent:
        agent = Agent(directory, ledger, clock, placements)
        agent.server.start()
        running.append(agent)
        agent.turn()
        return agent

    yield start
    for agent in running:
        agent.server.stop()
    shutil.rmtree(directory)


@pytest.fixture
def agent(opened: Open, file: Path) -> Agent:
    return opened(main={"inventory_file": file})


@pytest.fixture
def client(agent: Agent) -> Iterator[httpx.Client]:
    with agent.client() as made:
        yield made


class TestTwoPhases:
    def test_reserve_confirm_and_release(self, client: httpx.Client) -> None:
        answer = client.post("/main/requests", json={"request_id": "r1", "application": "shop", "count": 2})
        assert answer.status_code == 200
        made = answer.json()
        assert [one["host"] for one in made["containers"]] == ["large-1", "large-1"]
        assert (made["reason"], made["until"], made["advice"]) == ("placed", START + 300.0, False)
        again = client.post("/requests", json={"request_id": "r1", "application": "shop", "count": 2, "pool": "main"})
        assert again.json() == made
        assert client.post("/main/requests/r1/confirm", json={}).json()["done"] == "confirmed"
        assert client.post("/main/requests/r1/confirm", json={}).json()["already"]
        found = client.get("/main/requests/r1").json()
        assert found["reservation"]["hosts"] == {"0": "large-1", "1": "large-1"}
        left = client.post("/main/requests/r1/release", json={"containers": [0]}).json()["reservation"]
        assert (left["hosts"], left["released"]) == ({"1": "large-1"}, [0])
        client.post("/main/requests/r1/release", json={})
        assert client.get("/main/requests").json() == []
        assert client.get("/main/requests/r1").json() == {"decision": made, "reservation": None}

    def test_a_decision_is_found_explained_and_listed(self, agent: Agent, client: httpx.Client) -> None:
        client.post("/main/requests", json={"request_id": "r1", "application": "shop", "count": 17})
        found = client.get("/decisions/main-p1").json()
        assert (found["reason"], found["unplaced"], found["infeasible"]) == ("no_host", 17, {"cpu": 4})
        assert found["lines"][0].startswith("main-p1  2026-")
        assert client.get("/main/decisions").json()["decisions"][0]["id"] == "main-p1"

    @pytest.mark.parametrize(
        ("status", "field", "route", "body"),
        [
            (422, "body.count", "main/requests", {"request_id": "r", "application": "shop", "count": 0}),
            (422, "body.count", "main/requests", {"request_id": "r", "application": "shop", "count": "2"}),
            (422, "body.request_id", "main/requests", {"application": "shop"}),
            (422, "body.request_id", "main/requests", {"request_id": "a/b", "application": "shop"}),
            (422, "body.colour", "main/requests", {"request_id": "r", "application": "shop", "colour": 1}),
            (404, "application", "main/requests", {"request_id": "r", "application": "none"}),
            (404, "pool", "west/requests", {"request_id": "r", "application": "shop"}),
            (404, "request_id", "main/requests/r9/confirm", {}),
            (404, "request_id", "main/requests/r9/release", {}),
            (404, "host", "main/hosts/nothing/drain", {}),
            (422, "body.cores", "main/hosts", {"host": "h", "cores": 0, "memory_gib": 1, "disk_gb": 1}),
            (409, "host", "main/hosts", {"host": "large-1", "cores": 1, "memory_gib": 1, "disk_gb": 1}),
            (422, "body.policy", "main/switch", {"policy": "best", "owner": "ada", "reason": "x"}),
            (422, "policy", "main/switch", {"policy": "file:/nothing.json", "owner": "ada", "reason": "x"}),
            (422, "requests", "main/what-if", {"requests": []}),
        ],
    )
    def test_what_cannot_be_asked_names_the_field_and_changes_nothing(
        self, client: httpx.Client, status: int, field: str, route: str, body: dict[str, Any]
    ) -> None:
        before = client.get("/main").json()["head"]
        answer = client.post(f"/{route}", json=body)
        assert answer.status_code == status, answer.text
        assert answer.json()["wrong"][0]["field"] in (field, f"body.{field}")
        assert client.get("/main").json()["head"] == before

    def test_another_body_under_an_id_is_409(self, client: httpx.Client) -> None:
        client.post("/main/requests", json={"request_id": "r1", "application": "shop"})
        answer = client.post("/main/requests", json={"request_id": "r1", "application": "mail"})
        assert (answer.status_code, answer.json()["wrong"][0]["field"]) == (409, "request_id")


class TestLooking:
    def test_what_if_capacity_and_explain(self, client: httpx.Client) -> None:
        body = {"requests": [{"application": "shop", "count": 3}, {"application": "mail", "count": 20}]}
        found = client.post("/main/what-if", json=body).json()
        assert [one["unplaced"] for one in found["requests"]] == [0, 20]
        assert (found["open_before"], found["open_after"]) == (0, 1)
        assert client.get("/main/capacity-for/shop").json()["containers"] == 16
        assert client.get("/main/explain/shop").json()["best"][0]["host"] == "large-1"
        assert client.get("/main/capacity-for/none").status_code == 404

    def test_hosts_join_drain_change_and_fail(self, client: httpx.Client) -> None:
        body = {"host": "extra", "cores": 64, "memory_gib": 256, "disk_gb": 900, "rack": "r1"}
        assert client.post("/main/hosts", json=body).json()["host"]["origin"] == "api"
        assert client.post("/main/hosts", json=body).json()["already"]
        assert client.post("/main/hosts/large-1/drain", json={}).status_code == 200
        client.post("/main/requests", json={"request_id": "r1", "application": "shop", "count": 2})
        small = {"cores": 4, "memory_gib": 256, "disk_gb": 900}
        assert client.post("/main/hosts/large-2/capacity", json=small).json()["host"]["capacity"] == [4, 256, 900]
        moved = client.post("/main/hosts/large-2/fail", json={}).json()["moves"]
        assert [(one["before"], one["host"]) for one in moved] == [("large-2", "large-3"), ("large-2", "large-3")]
        states = {one["name"]: one["state"] for one in client.get("/main/hosts").json()}
        assert states == {"large-1": "draining", "large-2": "failed", "large-3": "up", "large-4": "up", "extra": "up"}
        assert [one["name"] for one in client.get("/main/hosts", params={"open": True}).json()] == ["large-3"]

    def test_the_agent_shows_its_pools_everywhere(self, agent: Agent, client: httpx.Client) -> None:
        client.post("/main/requests", json={"request_id": "r1", "application": "shop", "count": 5})
        status = agent.part.status("main", agent.clock.now())
        assert status.lines[0].startswith("main  2 open, at least 2 needed (+0.0%), policy BF")
        assert status.data["newest"][0]["decision_id"] == "main-p1"
        card = agent.part.card("main", agent.clock.now())
        assert card is not None
        assert (card.title, card.badges) == ("Placement main", (("in order", "good"),))
        readings = {(name, *labels): value for name, labels, value in agent.part.readings()}
        assert readings["placement_open_hosts", "main"] == 2
        assert readings["placement_allocation_ratio", "main", "cores"] == pytest.approx(20 / 32)
        assert readings["placement_hosts", "main", "up"] == 4
        capacity = agent.parts.capacity("placement", "main")
        assert capacity is not None
        assert (capacity.free, capacity.reserved) == (44.0, 20.0)
        summary = agent.part.summary(agent.part.decisions.newest("placement", "main", limit=1)[0])
        assert (summary.reason, summary.sentence) == ("placed", "5 x shop on large-1 x4, large-2, 2 of them opened")


class TestTheInventory:
    def test_is_read_again_when_it_changes_and_kept_while_it_is_wrong(
        self, agent: Agent, client: httpx.Client, file: Path
    ) -> None:
        client.post("/main/requests", json={"request_id": "r1", "application": "shop"})
        file.write_text(json.dumps(inventory(app("shop"), app("new"), hosts=[kind(count=2)])))
        agent.turn()
        assert client.get("/main/capacity-for/new").json()["containers"] == 7
        file.write_text("{")
        agent.turn()
        assert "no JSON" in agent.part.problems()["placement main"]
        file.write_text(json.dumps(inventory(app("new"))))
        agent.turn()
        assert "shop is not in it and still runs" in agent.part.problems()["placement main"]
        assert client.get("/main/capacity-for/new").json()["containers"] == 7
        client.post("/main/requests/r1/cancel", json={})
        agent.turn()
        assert agent.part.problems() == {"placement main": ""}
        assert client.get("/main/capacity-for/new").json()["containers"] == 16
        assert client.get("/main/capacity-for/shop").status_code == 404

    def test_that_cannot_be_followed_is_recorded_once(self, agent: Agent, file: Path) -> None:
        file.write_text(json.dumps({**inventory(), "host_types": [kind(cores=0)]}))
        for _ in range(3):
            agent.turn()
        noted = [entry for entry in agent.ledger.journal() if entry.reason == Reason.INVENTORY_REFUSED]
        assert len(noted) == 1
        assert "host_types[0].cores" in str(noted[0].body)

    def test_lists_hosts_that_left_until_their_containers_ended(
        self, agent: Agent, client: httpx.Client, file: Path
    ) -> None:
        client.post("/main/requests", json={"request_id": "r1", "application": "shop", "count": 16})
        file.write_text(json.dumps(inventory(hosts=[kind(count=2)])))
        agent.turn()
        states = {one["name"]: one["state"] for one in client.get("/main/hosts").json()}
        assert states == {"large-1": "up", "large-2": "up", "large-3": "draining", "large-4": "draining"}
        client.post("/main/requests/r1/cancel", json={})
        agent.turn()
        assert [one["name"] for one in client.get("/main/hosts").json()] == ["large-1", "large-2"]


SMALL = {"cores": 4, "memory_gib": 8, "disk_gb": 40}


class TestApplications:
    def test_come_change_and_go_beside_those_of_the_file(self, client: httpx.Client) -> None:
        there = client.put("/main/applications/batch", json={**SMALL, "limit": 1, "excludes": ["shop"]})
        assert (there.status_code, there.json()["already"]) == (200, False)
        assert client.put("/main/applications/batch", json={**SMALL, "limit": 1, "excludes": ["shop"]}).json()[
            "already"
        ]
        found = {one["application"]: one for one in client.get("/main/applications").json()}
        assert [(name, one["origin"], one["excludes"]) for name, one in found.items()] == [
            ("batch", "api", ["shop"]),
            ("mail", "inventory", []),
            ("shop", "inventory", ["batch"]),
        ]
        client.post("/main/requests", json={"request_id": "r1", "application": "batch", "count": 2})
        asked = client.post("/main/requests", json={"request_id": "r2", "application": "shop", "count": 9}).json()
        assert (asked["unplaced"], asked["infeasible"]) == (9, {"cpu": 2, "exclusion": 2})
        assert client.put("/main/applications/batch", json=SMALL).json()["done"].startswith("batch changes")
        again = client.post("/main/requests", json={"request_id": "r3", "application": "shop", "count": 9}).json()
        assert again["unplaced"] == 0
        assert client.get("/main/applications/batch").json()["containers"] == 2
        client.post("/main/requests/r1/cancel", json={})
        assert client.delete("/main/applications/batch").json()["done"] == "batch is deleted over HTTP"
        assert client.get("/main/applications/batch").status_code == 404

    @pytest.mark.parametrize(
        ("status", "field", "method", "name", "body"),
        [
            (409, "application", "PUT", "shop", SMALL),
            (409, "application", "DELETE", "shop", None),
            (404, "application", "DELETE", "none", None),
            (404, "excludes", "PUT", "new", {**SMALL, "excludes": ["none"]}),
            (422, "excludes", "PUT", "new", {**SMALL, "excludes": ["new"]}),
            (422, "cores", "PUT", "new", {**SMALL, "cores": 17}),
            (422, "label", "PUT", "new", {**SMALL, "label": "gpu"}),
            (422, "body.limit", "PUT", "new", {**SMALL, "limit": 0}),
            (422, "body.cores", "PUT", "new", {**SMALL, "cores": 0}),
            (422, "body.cores", "PUT", "new", {**SMALL, "cores": 1.5}),
            (422, "body.memory_gib", "PUT", "new", {"cores": 1, "disk_gb": 1}),
            (422, "body.colour", "PUT", "new", {**SMALL, "colour": 1}),
            (422, "path.application", "PUT", "a b", SMALL),
        ],
    )
    def test_that_cannot_be_are_refused_and_nothing_changes(
        self, client: httpx.Client, status: int, field: str, method: str, name: str, body: dict[str, Any] | None
    ) -> None:
        before = (client.get("/main").json()["head"], client.get("/main/applications").json())
        answer = client.request(method, f"/main/applications/{name}", json=body)
        assert (answer.status_code, answer.json()["wrong"][0]["field"]) == (status, field), answer.text
        assert (client.get("/main").json()["head"], client.get("/main/applications").json()) == before

    def test_that_run_keep_their_size_and_stay(self, client: httpx.Client) -> None:
        client.put("/main/applications/new", json=SMALL)
        client.put("/main/applications/other", json={**SMALL, "excludes": ["new"]})
        client.post("/main/requests", json={"request_id": "r1", "application": "new"})
        assert client.put("/main/applications/new", json={**SMALL, "cores": 2}).status_code == 409
        assert "other exclude it" in client.delete("/main/applications/new").text
        client.put("/main/applications/other", json=SMALL)
        assert "1 containers of it run" in client.delete("/main/applications/new").text
        assert client.get("/main/applications/new").json()["cores"] == 4

    def test_are_there_after_a_start_and_after_another_file(
        self, opened: Open, agent: Agent, client: httpx.Client, file: Path
    ) -> None:
        client.put("/main/applications/batch", json={**SMALL, "excludes": ["mail"], "limit": 3})
        before = client.get("/main/applications").json()
        agent.server.stop()
        again = opened(main={"inventory_file": file})
        with again.client() as fresh:
            assert fresh.get("/main/applications").json() == before
            file.write_text(json.dumps(inventory(app("mail"), app("shop"), app("web"))))
            again.turn()
            names = [one["application"] for one in fresh.get("/main/applications").json()]
            assert names == ["batch", "mail", "shop", "web"]
            file.write_text(json.dumps(inventory(app("mail"), app("batch"))))
            again.turn()
            assert "these applications came over HTTP" in again.part.problems()["placement main"]
            file.write_text(json.dumps(inventory(app("shop"))))
            again.turn()
            assert "excludes='mail': no application has this id" in again.part.problems()["placement main"]
            assert [one["application"] for one in fresh.get("/main/applications").json()] == names

    def test_of_a_pool_without_a_file(self, opened: Open) -> None:
        with opened(main={}).client() as bare:
            assert bare.put("/main/applications/new", json={**SMALL, "label": "gpu"}).status_code == 200
            bare.post("/main/hosts", json={"host": "h1", **SMALL})
            assert bare.get("/main/capacity-for/new").json()["infeasible"] == {"label": 1}
            assert bare.put("/main/applications/new", json={**SMALL, "cores": 5}).status_code == 422
            bare.put("/main/applications/new", json=SMALL)
            made = bare.post("/main/requests", json={"request_id": "r1", "application": "new"}).json()
            assert made["containers"][0]["host"] == "h1"


def pod(application: str | None = "shop", **meta: Any) -> dict[str, Any]:
    """A v1 Pod as kube-scheduler sends it, with fields that nothing here reads."""
    labels = {} if application is None else {"labels": {"trimtab.io/application": application}}
    metadata = {"name": "shop-1", "namespace": "default", "uid": "0-1", "creationTimestamp": None, **labels, **meta}
    container = {"name": "web", "resources": {"requests": {"cpu": "4", "memory": "8Gi"}}}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": {}}


def args(names: list[str], application: str | None = "shop", *, cached: bool = True) -> dict[str, Any]:
    """ExtenderArgs of k8s.io/kube-scheduler/extender/v1, which has Go's names of its fields."""
    nodes = {"metadata": {}, "items": [{"metadata": {"name": name, "labels": None}, "spec": {}} for name in names]}
    return {"Pod": pod(application), "Nodes": None if cached else nodes, "NodeNames": names if cached else None}


class TestTheExtender:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        nodes = [kind(f"node-{n}", cores, 1) for n, cores in enumerate((16, 8, 4))]
        path = tmp_path / "pool.json"
        held = {"snapshot": [{"host_type": "node-0", "instances": {"single": 1}}]}
        path.write_text(json.dumps(inventory(app("shop"), app("single", 8, limit=1), hosts=nodes, **held)))
        return path

    def test_filters_names_and_reserves_nothing(self, client: httpx.Client) -> None:
        names = ["node-0", "node-1", "node-2", "other"]
        found = client.post("/main/extender/filter", json=args(names, "single")).json()
        assert found["NodeNames"] == ["node-1"]
        assert found["FailedNodes"] == {"node-0": "limit", "node-2": "cpu", "other": "not a host of the pool main"}
        assert (found["Nodes"], found["Error"]) == (None, "")
        assert client.get("/main").json()["head"]["decisions"] == 0

    def test_filters_whole_nodes_where_it_gets_them(self, client: httpx.Client) -> None:
        given = args(["node-0", "node-1"], "single", cached=False)
        found = client.post("/main/extender/filter", json=given).json()
        assert found["Nodes"] == {"metadata": {}, "items": [given["Nodes"]["items"][1]]}
        assert found["NodeNames"] is None

    def test_prioritizes_by_the_scores_of_the_policy(self, client: httpx.Client) -> None:
        names = ["node-0", "node-1", "node-2", "other"]
        found = client.post("/main/extender/prioritize", json=args(names)).json()
        # Best fit: the container fills node-2 and half of what is left of node-0 and node-1.
        assert found[2] == {"Host": "node-2", "Score": 10}
        assert found[3] == {"Host": "other", "Score": 0}
        assert all(0 <= one["Score"] < 10 for one in found[:2])

    @pytest.mark.parametrize("spelt", [str.lower, str.upper, str])
    def test_reads_names_of_fields_in_any_case_as_go_does(
        self, client: httpx.Client, spelt: Callable[[str], str]
    ) -> None:
        """Types of earlier releases had tags in small letters."""
        cached = {spelt(name): value for name, value in args(["node-0", "node-1"], "single").items()}
        assert client.post("/main/extender/filter", json=cached).json()["NodeNames"] == ["node-1"]
        whole = {spelt(name): value for name, value in args(["node-2"], cached=False).items()}
        assert client.post("/main/extender/prioritize", json=whole).json() == [{"Host": "node-2", "Score": 10}]

    def test_lets_pods_of_others_pass(self, client: httpx.Client) -> None:
        given = args(["node-0", "other"], None)
        assert client.post("/main/extender/filter", json=given).json()["NodeNames"] == ["node-0", "other"]
        scores = client.post("/main/extender/prioritize", json=given).json()
        assert {one["Score"] for one in scores} == {0}

    def test_takes_the_application_from_an_annotation_too(self, client: httpx.Client) -> None:
        given = {**args(["node-2"]), "Pod": pod(None, annotations={"trimtab.io/application": "single"})}
        assert client.post("/main/extender/filter", json=given).json()["NodeNames"] == []

    def test_answers_an_unknown_application_with_an_error(self, client: httpx.Client) -> None:
        found = client.post("/main/extender/filter", json=args(["node-0"], "none")).json()
        assert "it is not in the pool's inventory" in found["Error"]

    def test_takes_ten_thousand_nodes(self, client: httpx.Client) -> None:
        names = [f"ip-10-{n // 250}-{n % 250}-7.eu-west-1.compute.internal" for n in range(10_000)]
        answer = client.post("/main/extender/filter", json=args([*names, "node-1"]))
        assert answer.status_code == 200
        assert answer.json()["NodeNames"] == ["node-1"]

    @pytest.mark.parametrize("metadata", [None, "node-0", ["node-0"], 7, {"name": None}, {"name": 7}])
    def test_a_node_without_a_name_takes_no_pod(self, client: httpx.Client, metadata: Any) -> None:
        body = {"Pod": pod(), "Nodes": {"items": [{"metadata": metadata}]}, "NodeNames": None}
        found = client.post("/main/extender/filter", json=body)
        assert found.status_code == 200, found.text
        assert found.json()["Nodes"]["items"] == []
        assert client.post("/main/extender/prioritize", json=body).json() == [{"Host": "", "Score": 0}]

    @pytest.mark.parametrize("body", [{}, {"Pod": None}, {"Pod": pod(), "NodeNames": "node-0"}])
    def test_refuses_what_is_no_such_request(self, client: httpx.Client, body: dict[str, Any]) -> None:
        assert client.post("/main/extender/filter", json=body).status_code == 422


def test_the_file_may_be_replaced_by_a_link(opened: Open, file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    os.symlink(file, link)
    agent = opened(main={"inventory_file": link})
    assert agent.part.problems() == {"placement main": ""}
