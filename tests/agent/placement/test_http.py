"""Placement over HTTP: two phases, what would be, hosts, applications, and Kubernetes' extender."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.placement.decision import PlacementPart
from agent.placement.records import PoolHead
from domain.clock import VirtualClock
from domain.decisions import Reason
from tests.agent.placement.hosts import START, app, inventory, kind
from tests.contract.running import RunningAgent, running
from tests.golden import figures
from tests.short_directory import short_directory

POOLS = 24
"""More than there are tests that need one of their own."""
BARE = "bare"
"""A pool without a file."""
NODES = inventory(
    app("shop"),
    app("single", 8, limit=1),
    hosts=[kind(f"node-{n}", cores, 1) for n, cores in enumerate((16, 8, 4))],
    snapshot=[{"host_type": "node-0", "instances": {"single": 1}}],
)


@dataclass
class Pool:
    """A pool of the agent with its inventory file; a turn is made when the test says so."""

    agent: RunningAgent
    name: str
    file: Path
    client: httpx.Client

    @property
    def part(self) -> PlacementPart:
        part = self.agent.part("placement")
        assert isinstance(part, PlacementPart)
        return part

    @property
    def problem(self) -> str:
        return self.part.problems()[f"placement {self.name}"]

    @property
    def head(self) -> PoolHead:
        """What the ledger holds of the whole pool."""
        return self.part.pools[self.name].view().head

    def turn(self) -> None:
        """Turn it once, as the leader."""
        clock = self.agent.clock
        self.part.pools.turns[self.name].turn(clock.now(), clock.monotonic(), self.agent.epoch)


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    """One agent for the module, with a pool for each test that changes one."""
    with short_directory() as directory:
        names = [f"p{n}" for n in range(POOLS)]
        usual = {"policy": "bf", "decide_within_ms": 10_000.0}
        pools = {name: {"inventory_file": directory / f"{name}.json", **usual} for name in names}
        settings = {"placements": {**pools, BARE: {}}, "http": {"socket": directory / "s.sock"}}
        with running(f"sqlite:///{directory}/l.db", VirtualClock(START), directory=directory, **settings) as made:
            yield made.lead()


def at_utc(at: float) -> str:
    """A moment as RFC 3339 has it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def opened(agent: RunningAgent, document: dict[str, Any]) -> Pool:
    """The next pool that no test has yet, with this inventory, after its first turn."""
    directory = Path(agent.settings.state_directory)
    name = next(name for name in agent.settings.placements if not (directory / f"{name}.json").exists())
    file = directory / f"{name}.json"
    file.write_text(json.dumps(document))
    pool = Pool(agent, name, file, agent.client(f"/api/v1/placement/{name}"))
    pool.turn()
    return pool


@pytest.fixture
def pool(agent: RunningAgent) -> Iterator[Pool]:
    """A pool that no other test has."""
    made = opened(agent, inventory())
    yield made
    made.client.close()


@pytest.fixture
def client(pool: Pool) -> httpx.Client:
    return pool.client


@pytest.fixture(scope="module")
def unchanged(agent: RunningAgent) -> Iterator[Pool]:
    """A pool that no test changes."""
    made = opened(agent, inventory())
    yield made
    made.client.close()


@pytest.fixture(scope="module")
def nodes(agent: RunningAgent) -> Iterator[Pool]:
    """A pool of three nodes, which the extender only looks at."""
    made = opened(agent, NODES)
    yield made
    made.client.close()


class TestTwoPhases:
    def test_reserve_confirm_and_release(self, client: httpx.Client) -> None:
        answer = client.post("/requests", json={"request_id": "r1", "application": "shop", "count": 2})
        assert answer.status_code == 200
        made = answer.json()
        assert [one["host"] for one in made["containers"]] == ["large-1", "large-1"]
        assert (made["reason"], made["until"], made["advice"]) == ("placed", START + 300.0, False)
        assert client.post("/requests/r1/confirm", json={}).json()["done"] == "confirmed"
        assert client.post("/requests/r1/confirm", json={}).json()["already"]
        found = client.get("/requests/r1").json()
        assert found["reservation"]["hosts"] == {"0": "large-1", "1": "large-1"}
        left = client.post("/requests/r1/release", json={"containers": [0]}).json()["reservation"]
        assert (left["hosts"], left["released"]) == ({"1": "large-1"}, [0])
        client.post("/requests/r1/release", json={})
        assert client.get("/requests").json() == []
        assert client.get("/requests/r1").json() == {"decision": made, "reservation": None}

    def test_a_request_or_its_application_declares_a_lifetime(self, client: httpx.Client) -> None:
        client.put("/applications/new", json={**SMALL, "lifetime_s": 60})
        assert client.get("/applications/new").json()["lifetime_s"] == 60.0
        asked: list[dict[str, Any]] = [
            {"application": "new"},
            {"application": "new", "lifetime_s": 7200},
            {"application": "shop", "expected_end": at_utc(START + 90.0)},
            {"application": "shop", "expected_end": at_utc(START + 90.0).replace("Z", "+00:00").lower()},
        ]
        bodies = [{"request_id": f"r{n}", **body} for n, body in enumerate(asked)]
        found = [client.post("/requests", json=body).json() for body in bodies]
        assert [one["lifetime_s"] for one in found] == [60.0, 7200.0, 90.0, 90.0]
        assert [one["lifetime_from"] for one in found] == ["application", *["request"] * 3]
        assert client.get("/requests/r2").json()["reservation"]["lifetime_s"] == 90.0
        assert client.post("/requests", json=bodies[2]).json() == found[2]
        # The same moment in other words is the same request.
        assert client.post("/requests", json={**bodies[3], "request_id": "r2"}).json() == found[2]
        assert client.post("/requests", json={**bodies[2], "lifetime_s": 90.0}).status_code == 422
        assert client.post("/requests", json={"request_id": "r2", "application": "shop"}).status_code == 409

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            *(
                ("lifetime_s", value)
                for value in ("0", "-1", "NaN", "Infinity", '"60"', "true", "3.2e8", "1e400", "[]")
            ),
            *(("lifetime_s", value) for value in ("1" + "0" * 400, '"2h"')),
            *(
                ("expected_end", f'"{value}"')
                for value in (
                    *("2026-09-21", "2026-09-21T14:13:21", "2026-09-21T14:13:60Z", "2026-13-01T00:00:00Z", "never", ""),
                    *("0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00", "2026-09-21T14:13:21+99:00"),
                    *("2026-09-21T14:13:20Z", "2026-09-21T14:13:19Z", "2126-09-21T14:13:20Z", "1790000060"),
                )
            ),
            ("expected_end", "1790000060"),
        ],
    )
    def test_a_lifetime_that_cannot_be_is_refused(self, unchanged: Pool, field: str, value: str) -> None:
        before = unchanged.head
        body = f'{{"request_id": "r1", "application": "shop", "{field}": {value}}}'
        answer = unchanged.client.post("/requests", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, answer.text
        assert answer.json()["wrong"][0]["field"] in (field, f"body.{field}")
        assert unchanged.head == before

    def test_a_refusal_names_what_the_hosts_lack(self, client: httpx.Client) -> None:
        found = client.post("/requests", json={"request_id": "r1", "application": "shop", "count": 17}).json()
        assert (found["reason"], found["unplaced"], found["infeasible"]) == ("no_host", 17, {"cpu": 4})

    @pytest.mark.parametrize(
        ("status", "field", "route", "body"),
        [
            (404, "application", "requests", {"request_id": "r", "application": "none"}),
            (404, "request_id", "requests/r9/confirm", {}),
            (404, "request_id", "requests/r9/release", {}),
            (404, "host", "hosts/nothing/drain", {}),
            (422, "body.cores", "hosts", {"host": "h", "cores": 0, "memory_gib": 1, "disk_gb": 1}),
            (409, "host", "hosts", {"host": "large-1", "cores": 1, "memory_gib": 1, "disk_gb": 1}),
            (422, "body.policy", "switch", {"policy": "best", "owner": "ada", "reason": "x"}),
            (422, "policy", "switch", {"policy": "file:/nothing.json", "owner": "ada", "reason": "x"}),
            (422, "requests", "what-if", {"requests": []}),
        ],
    )
    def test_what_cannot_be_asked_names_the_field_and_changes_nothing(
        self, unchanged: Pool, status: int, field: str, route: str, body: dict[str, Any]
    ) -> None:
        before = unchanged.head
        answer = unchanged.client.post(f"/{route}", json=body)
        assert answer.status_code == status, answer.text
        assert answer.json()["wrong"][0]["field"] in (field, f"body.{field}")
        assert unchanged.head == before


class TestLooking:
    def test_what_if_capacity_and_explain(self, client: httpx.Client) -> None:
        body = {"requests": [{"application": "shop", "count": 3}, {"application": "mail", "count": 20}]}
        found = client.post("/what-if", json=body).json()
        assert [one["unplaced"] for one in found["requests"]] == [0, 20]
        assert (found["open_before"], found["open_after"]) == (0, 1)
        assert client.get("/capacity-for/shop").json()["containers"] == 16
        assert client.get("/explain/shop").json()["best"][0]["host"] == "large-1"
        assert client.get("/capacity-for/none").status_code == 404

    def test_hosts_join_drain_change_and_fail(self, client: httpx.Client) -> None:
        body = {"host": "extra", "cores": 64, "memory_gib": 256, "disk_gb": 900, "rack": "r1"}
        assert client.post("/hosts", json=body).json()["host"]["origin"] == "api"
        assert client.post("/hosts", json=body).json()["already"]
        assert client.post("/hosts/large-1/drain", json={}).status_code == 200
        client.post("/requests", json={"request_id": "r1", "application": "shop", "count": 2})
        small = {"cores": 4, "memory_gib": 256, "disk_gb": 900}
        assert client.post("/hosts/large-2/capacity", json=small).json()["host"]["capacity"] == [4, 256, 900]
        moved = client.post("/hosts/large-2/fail", json={}).json()["moves"]
        assert [(one["before"], one["host"]) for one in moved] == [("large-2", "large-3"), ("large-2", "large-3")]
        states = {one["name"]: one["state"] for one in client.get("/hosts").json()}
        assert states == {"large-1": "draining", "large-2": "failed", "large-3": "up", "large-4": "up", "extra": "up"}
        assert [one["name"] for one in client.get("/hosts", params={"open": True}).json()] == ["large-3"]

    def test_a_pool_is_shown_everywhere(self, pool: Pool, client: httpx.Client) -> None:
        client.post("/requests", json={"request_id": "r1", "application": "shop", "count": 5})
        part, name = pool.part, pool.name
        status = part.status(name, pool.agent.clock.now())
        assert status.lines[0].startswith(f"{name}  2 open, ")
        assert status.data["newest"][0]["decision_id"] == f"{name}-p1"
        card = part.card(name, pool.agent.clock.now())
        assert card is not None
        assert (card.title, card.badges) == (f"Placement {name}", (("in order", "good"),))
        readings = {(reading, *labels): value for reading, labels, value in part.readings()}
        assert readings["placement_open_hosts", name] == 2
        assert readings["placement_allocation_ratio", name, "cores"] == pytest.approx(20 / 32)
        assert readings["placement_hosts", name, "up"] == 4
        capacity = pool.agent.parts.capacity("placement", name)
        assert capacity is not None
        assert (capacity.free, capacity.reserved) == (44.0, 20.0)
        summary = part.summary(part.decisions.newest("placement", name, limit=1)[0])
        assert (summary.reason, figures(summary.sentence)) == ("placed", [5, 1, 4, 2, 2])


class TestTheInventory:
    def test_is_read_again_when_it_changes_and_kept_while_it_is_wrong(self, pool: Pool, client: httpx.Client) -> None:
        client.post("/requests", json={"request_id": "r1", "application": "shop"})
        pool.file.write_text(json.dumps(inventory(app("shop"), app("new"), hosts=[kind(count=2)])))
        pool.turn()
        assert client.get("/capacity-for/new").json()["containers"] == 7
        pool.file.write_text("{")
        pool.turn()
        assert "not valid JSON" in pool.problem
        pool.file.write_text(json.dumps(inventory(app("new"))))
        pool.turn()
        assert "shop is not in it and still runs" in pool.problem
        assert client.get("/capacity-for/new").json()["containers"] == 7
        client.post("/requests/r1/cancel", json={})
        pool.turn()
        assert pool.problem == ""
        assert client.get("/capacity-for/new").json()["containers"] == 16
        assert client.get("/capacity-for/shop").status_code == 404

    def test_that_cannot_be_followed_is_recorded_once(self, pool: Pool) -> None:
        pool.file.write_text(json.dumps({**inventory(), "host_types": [kind(cores=0)]}))
        for _ in range(3):
            pool.turn()
        noted = [
            entry for entry in pool.agent.ledger.journal(subject=pool.name) if entry.reason == Reason.INVENTORY_REFUSED
        ]
        assert len(noted) == 1
        assert "host_types[0].cores" in str(noted[0].body)

    def test_lists_hosts_that_left_until_their_containers_ended(self, pool: Pool, client: httpx.Client) -> None:
        client.post("/requests", json={"request_id": "r1", "application": "shop", "count": 16})
        pool.file.write_text(json.dumps(inventory(hosts=[kind(count=2)])))
        pool.turn()
        states = {one["name"]: one["state"] for one in client.get("/hosts").json()}
        assert states == {"large-1": "up", "large-2": "up", "large-3": "draining", "large-4": "draining"}
        client.post("/requests/r1/cancel", json={})
        pool.turn()
        assert [one["name"] for one in client.get("/hosts").json()] == ["large-1", "large-2"]


SMALL = {"cores": 4, "memory_gib": 8, "disk_gb": 40}


class TestApplications:
    def test_come_change_and_go_beside_those_of_the_file(self, client: httpx.Client) -> None:
        there = client.put("/applications/batch", json={**SMALL, "limit": 1, "excludes": ["shop"]})
        assert (there.status_code, there.json()["already"]) == (200, False)
        assert client.put("/applications/batch", json={**SMALL, "limit": 1, "excludes": ["shop"]}).json()["already"]
        found = {one["application"]: one for one in client.get("/applications").json()}
        names = sorted(found)
        pages = [client.get("/applications", params={"limit": 1, "after": name}).json() for name in ("", *names)]
        assert [one["application"] for page in pages for one in page] == names
        assert [(name, one["origin"], one["excludes"]) for name, one in found.items()] == [
            ("batch", "api", ["shop"]),
            ("mail", "inventory", []),
            ("shop", "inventory", ["batch"]),
        ]
        client.post("/requests", json={"request_id": "r1", "application": "batch", "count": 2})
        asked = client.post("/requests", json={"request_id": "r2", "application": "shop", "count": 9}).json()
        assert (asked["unplaced"], asked["infeasible"]) == (9, {"cpu": 2, "exclusion": 2})
        assert client.put("/applications/batch", json=SMALL).json()["done"].startswith("batch changes")
        again = client.post("/requests", json={"request_id": "r3", "application": "shop", "count": 9}).json()
        assert again["unplaced"] == 0
        assert client.get("/applications/batch").json()["containers"] == 2
        client.post("/requests/r1/cancel", json={})
        assert client.delete("/applications/batch").json()["done"] == "batch is deleted over HTTP"
        assert client.get("/applications/batch").status_code == 404

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
            (422, "body.lifetime_s", "PUT", "new", {**SMALL, "lifetime_s": 0}),
            (422, "body.cores", "PUT", "new", {**SMALL, "cores": 0}),
            (422, "body.cores", "PUT", "new", {**SMALL, "cores": 1.5}),
            (422, "body.memory_gib", "PUT", "new", {"cores": 1, "disk_gb": 1}),
            (422, "body.colour", "PUT", "new", {**SMALL, "colour": 1}),
            (422, "path.application", "PUT", "a b", SMALL),
        ],
    )
    def test_that_cannot_be_are_refused_and_nothing_changes(
        self, unchanged: Pool, status: int, field: str, method: str, name: str, body: dict[str, Any] | None
    ) -> None:
        before = (unchanged.head, unchanged.client.get("/applications").json())
        answer = unchanged.client.request(method, f"/applications/{name}", json=body)
        assert (answer.status_code, answer.json()["wrong"][0]["field"]) == (status, field), answer.text
        assert (unchanged.head, unchanged.client.get("/applications").json()) == before

    def test_that_run_keep_their_size_and_stay(self, client: httpx.Client) -> None:
        client.put("/applications/new", json=SMALL)
        client.put("/applications/other", json={**SMALL, "excludes": ["new"]})
        client.post("/requests", json={"request_id": "r1", "application": "new"})
        assert client.put("/applications/new", json={**SMALL, "cores": 2}).status_code == 409
        assert "other exclude it" in client.delete("/applications/new").text
        client.put("/applications/other", json=SMALL)
        assert "1 containers of it run" in client.delete("/applications/new").text
        assert client.get("/applications/new").json()["cores"] == 4

    def test_are_there_after_a_start_and_after_another_file(self, pool: Pool, client: httpx.Client) -> None:
        client.put("/applications/batch", json={**SMALL, "excludes": ["mail"], "limit": 3})
        before = client.get("/applications").json()
        agent, directory = pool.agent, Path(pool.agent.settings.state_directory)
        url, socket = f"sqlite:///{agent.ledger.database.path}", {"socket": directory / "again.sock"}
        placements = {pool.name: {"inventory_file": pool.file}}
        with running(url, agent.clock, directory=directory, http=socket, placements=placements) as started:
            started.epoch = agent.epoch
            again = Pool(started, pool.name, pool.file, started.client(f"/api/v1/placement/{pool.name}"))
            with again.client as fresh:
                again.turn()
                assert fresh.get("/applications").json() == before
                pool.file.write_text(json.dumps(inventory(app("mail"), app("shop"), app("web"))))
                again.turn()
                names = [one["application"] for one in fresh.get("/applications").json()]
                assert names == ["batch", "mail", "shop", "web"]
                pool.file.write_text(json.dumps(inventory(app("mail"), app("batch"))))
                again.turn()
                assert "batch" in again.problem
                pool.file.write_text(json.dumps(inventory(app("shop"))))
                again.turn()
                assert "excludes='mail'" in again.problem
                assert [one["application"] for one in fresh.get("/applications").json()] == names

    def test_of_a_pool_without_a_file(self, agent: RunningAgent) -> None:
        with agent.client(f"/api/v1/placement/{BARE}") as bare:
            assert bare.put("/applications/new", json={**SMALL, "label": "gpu"}).status_code == 200
            bare.post("/hosts", json={"host": "h1", **SMALL})
            assert bare.get("/capacity-for/new").json()["infeasible"] == {"label": 1}
            assert bare.put("/applications/new", json={**SMALL, "cores": 5}).status_code == 422
            bare.put("/applications/new", json=SMALL)
            made = bare.post("/requests", json={"request_id": "r1", "application": "new"}).json()
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
    def client(self, nodes: Pool) -> httpx.Client:
        return nodes.client

    def test_filters_names_and_reserves_nothing(self, nodes: Pool, client: httpx.Client) -> None:
        names = ["node-0", "node-1", "node-2", "other"]
        found = client.post("/extender/filter", json=args(names, "single")).json()
        assert found["NodeNames"] == ["node-1"]
        assert found["FailedNodes"] == {
            "node-0": "limit",
            "node-2": "cpu",
            "other": f"not a host of the pool {nodes.name}",
        }
        # No eviction makes another pool's node one of this pool.
        assert found["FailedAndUnresolvableNodes"] == {"other": found["FailedNodes"]["other"]}
        assert (found["Nodes"], found["Error"]) == (None, "")
        assert nodes.head.decisions == 0

    def test_filters_whole_nodes_where_it_gets_them(self, client: httpx.Client) -> None:
        given = args(["node-0", "node-1"], "single", cached=False)
        found = client.post("/extender/filter", json=given).json()
        assert found["Nodes"] == {"metadata": {}, "items": [given["Nodes"]["items"][1]]}
        assert found["NodeNames"] is None

    def test_prioritizes_by_the_scores_of_the_policy(self, client: httpx.Client) -> None:
        names = ["node-0", "node-1", "node-2", "other"]
        found = client.post("/extender/prioritize", json=args(names)).json()
        # Best fit: the container fills node-2 and half of what is left of node-0 and node-1.
        assert found[2] == {"Host": "node-2", "Score": 10}
        assert found[3] == {"Host": "other", "Score": 0}
        assert all(0 <= one["Score"] < 10 for one in found[:2])

    @pytest.mark.parametrize(
        ("deadline", "expected"),
        [(60, 60.0), (0, None), (-1, None), (True, None), ("60", None), (10**10, None), (None, None)],
    )
    def test_reads_a_deadline_as_a_lifetime_where_a_setting_allows_it(
        self,
        nodes: Pool,
        client: httpx.Client,
        monkeypatch: pytest.MonkeyPatch,
        deadline: object,
        expected: float | None,
    ) -> None:
        pool = nodes.part.pools[nodes.name]
        given = args(["node-0"])
        given["Pod"]["spec"] = {"activeDeadlineSeconds": deadline}
        found = []
        for allowed in (False, True):
            monkeypatch.setattr(pool, "settings", pool.settings.model_copy(update={"deadline_as_lifetime": allowed}))
            assert client.post("/extender/prioritize", json=given).json() == [{"Host": "node-0", "Score": 10}]
            found.append(pool.current().cluster.hint)
        assert math.isnan(found[0])
        assert math.isnan(found[1]) if expected is None else found[1] == math.log(expected)

    @pytest.mark.parametrize("spelt", [str.lower, str.upper, str])
    def test_reads_names_of_fields_in_any_case_as_go_does(
        self, client: httpx.Client, spelt: Callable[[str], str]
    ) -> None:
        """Types of earlier releases had tags in small letters."""
        cached = {spelt(name): value for name, value in args(["node-0", "node-1"], "single").items()}
        assert client.post("/extender/filter", json=cached).json()["NodeNames"] == ["node-1"]
        whole = {spelt(name): value for name, value in args(["node-2"], cached=False).items()}
        assert client.post("/extender/prioritize", json=whole).json() == [{"Host": "node-2", "Score": 10}]

    def test_lets_pods_of_others_pass(self, client: httpx.Client) -> None:
        given = args(["node-0", "other"], None)
        assert client.post("/extender/filter", json=given).json()["NodeNames"] == ["node-0", "other"]
        scores = client.post("/extender/prioritize", json=given).json()
        assert {one["Score"] for one in scores} == {0}

    def test_takes_the_application_from_an_annotation_too(self, client: httpx.Client) -> None:
        given = {**args(["node-2"]), "Pod": pod(None, annotations={"trimtab.io/application": "single"})}
        assert client.post("/extender/filter", json=given).json()["NodeNames"] == []

    @pytest.mark.parametrize("cached", [True, False])
    def test_lets_no_node_pass_for_an_unknown_application(self, client: httpx.Client, cached: bool) -> None:
        """An error would let a scheduler that may ignore the extender place the pod anywhere."""
        name = "misspelt" * 1000
        found = client.post("/extender/filter", json=args(["node-0", "node-1"], name, cached=cached)).json()
        assert found["Error"] == ""
        assert (found["NodeNames"] if cached else found["Nodes"]["items"]) == []
        assert set(found["FailedNodes"]) == {"node-0", "node-1"}
        assert found["FailedAndUnresolvableNodes"] == found["FailedNodes"]
        assert max(map(len, found["FailedNodes"].values())) < 200

    def test_takes_ten_thousand_nodes(self, client: httpx.Client) -> None:
        names = [f"ip-10-{n // 250}-{n % 250}-7.eu-west-1.compute.internal" for n in range(10_000)]
        answer = client.post("/extender/filter", json=args([*names, "node-1"]))
        assert answer.status_code == 200
        assert answer.json()["NodeNames"] == ["node-1"]

    @pytest.mark.parametrize("metadata", [None, "node-0", ["node-0"], 7, {"name": None}, {"name": 7}])
    def test_a_node_without_a_name_takes_no_pod(self, client: httpx.Client, metadata: Any) -> None:
        body = {"Pod": pod(), "Nodes": {"items": [{"metadata": metadata}]}, "NodeNames": None}
        found = client.post("/extender/filter", json=body)
        assert found.status_code == 200, found.text
        assert found.json()["Nodes"]["items"] == []
        assert client.post("/extender/prioritize", json=body).json() == [{"Host": "", "Score": 0}]

    @pytest.mark.parametrize("body", [{}, {"Pod": None}, {"Pod": pod(), "NodeNames": "node-0"}])
    def test_refuses_what_is_no_such_request(self, client: httpx.Client, body: dict[str, Any]) -> None:
        assert client.post("/extender/filter", json=body).status_code == 422


def test_the_file_may_be_replaced_by_a_link(pool: Pool) -> None:
    there = pool.file.rename(pool.file.with_suffix(".there"))
    os.symlink(there, pool.file)
    pool.turn()
    assert pool.problem == ""
