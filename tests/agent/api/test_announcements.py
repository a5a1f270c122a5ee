"""Work is announced, listed and withdrawn over HTTP; a wrong request names each field and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agent.autoscaling.part import AutoscalingPart
from agent.settings import Settings
from tests.agent.api.conftest import Serve, over_socket
from tests.agent.api.running import ASKER, OPERATOR, READER, Running

PATH = "/api/v1/autoscaling/announcements"
WORK: dict[str, Any] = {"id": "build-7", "in_minutes": 10, "jobs": 200, "job_core_s": 120, "owner": "ada"}


def test_announced_work_is_listed_seen_by_the_next_turn_and_withdrawn(client: httpx.Client, running: Running) -> None:
    now = running.world.agent_clock.now()
    answer = client.post(PATH, json={**WORK, "over_minutes": 5})
    kept = {
        "fleet": "web",
        "id": "build-7",
        "at": now + 600.0,
        "jobs": 200,
        "job_core_s": 120.0,
        "over_minutes": 5.0,
        "owner": "ada",
        "since": now,
    }
    assert (answer.status_code, answer.json()) == (200, {"announced": kept, "new": True})
    assert client.get(PATH, params={"fleet": "web"}).json() == [kept]
    running.tick()
    (seen,) = running.world.snapshot.announced or ()
    assert (seen.at, seen.jobs, seen.job_core_s, seen.over_s) == (now + 600.0, 200, 120.0, 300.0)
    assert client.get("/api/v1/autoscaling/web").json()["announced"][0]["jobs"] == 200
    assert client.delete(f"{PATH}/build-7", params={"owner": "bob"}).json() == kept
    assert client.get(PATH).json() == []
    gone = client.delete(f"{PATH}/build-7", params={"owner": "bob"})
    assert (gone.status_code, gone.json()["wrong"][0]["field"]) == (404, "id")


def test_the_same_again_is_the_same_and_other_work_of_that_id_is_409(client: httpx.Client, running: Running) -> None:
    first = client.post(PATH, json=WORK).json()
    running.world.clock.advance(30.0)
    assert client.post(PATH, json=WORK).json() == {**first, "new": False}
    answer = client.post(PATH, json={**WORK, "jobs": 5})
    assert (answer.status_code, answer.json()["wrong"][0]["field"]) == (409, "id")
    assert client.get(PATH).json() == [first["announced"]]


def test_work_that_the_settings_announce_is_listed_for_a_day(serve: Serve, running: Running) -> None:
    group = {"vm_type": "m5a.large", "cores": 2, "memory_gb": 8, "price_per_hour": 0.1, "max": 10}
    nightly = {"at": "02:00", "jobs": 50, "job_core_s": 60, "over_minutes": 10}
    fleets = {"web": {"groups": {"small": group}, "announcements": {"nightly": nightly}}}
    (part,) = (one for one in running.parts.parts if isinstance(one, AutoscalingPart))
    part._settings = Settings(fleets=fleets)
    with over_socket(serve()) as client:
        (one,) = client.get(PATH).json()
        assert (one["id"], one["owner"], one["jobs"], one["over_minutes"]) == (None, None, 50, 10.0)
        assert one["at"] % 86_400 == 7_200


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"jobs": 0, "job_core_s": -1, "over_minutes": 1e9}, {"body.jobs", "body.job_core_s", "body.over_minutes"}),
        ({"jobs": True, "job_core_s": "60"}, {"body.jobs", "body.job_core_s"}),
        ({"id": "../etc"}, {"body.id"}),
        ({"id": ""}, {"body.id"}),
        ({"surprise": 1}, {"body.surprise"}),
        ({"at": 2e9}, {"at"}),
        ({"in_minutes": None}, {"at"}),
        ({"in_minutes": None, "at": 1.0}, {"at"}),
        ({"in_minutes": None, "at": 9e10}, {"at"}),
        ({"in_minutes": 1e6}, {"body.in_minutes"}),
        ({"owner": "a\nb"}, {"owner"}),
    ],
)
def test_a_wrong_announcement_names_every_field_and_changes_nothing(
    client: httpx.Client, shared: Running, change: dict[str, Any], fields: set[str]
) -> None:
    before = shared.world.journal
    answer = client.post(PATH, json={**WORK, **change})
    assert answer.status_code == 422
    assert {wrong["field"] for wrong in answer.json()["wrong"]} == fields
    assert shared.world.journal == before


def test_a_fleet_that_is_not_there_is_404(client: httpx.Client) -> None:
    for answer in (client.post(PATH, json={**WORK, "fleet": "blue"}), client.get(PATH, params={"fleet": "blue"})):
        assert (answer.status_code, answer.json()["wrong"][0]["field"]) == (404, "fleet")


def test_readers_list_and_operators_alone_announce_and_withdraw(over_tcp: Callable[..., httpx.Client]) -> None:
    reader, asker, operator = over_tcp(READER), over_tcp(ASKER), over_tcp(OPERATOR)
    assert (reader.get(PATH).status_code, asker.get(PATH).status_code) == (200, 403)
    for other in (reader, asker):
        assert other.post(PATH, json=WORK).status_code == 403
        assert other.delete(f"{PATH}/build-7", params={"owner": "bob"}).status_code == 403
    assert operator.delete(f"{PATH}/build-7", params={"owner": "bob"}).status_code == 404
    foreign = {"origin": "https://elsewhere.example"}
    assert operator.delete(f"{PATH}/build-7", params={"owner": "bob"}, headers=foreign).status_code == 403


def test_the_path_tells_all_of_its_methods(client: httpx.Client) -> None:
    refused = client.request("PUT", PATH, json={})
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert client.request("PUT", f"{PATH}/build-7", json={}).headers["allow"] == "DELETE"
