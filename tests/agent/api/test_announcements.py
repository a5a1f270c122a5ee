"""Work is announced, listed and withdrawn over HTTP; a wrong request names each field and changes nothing."""

from __future__ import annotations

from typing import Any

import httpx

from agent.autoscaling.decision import AutoscalingPart
from agent.settings import Settings
from tests.agent.api.conftest import Serve, over_socket
from tests.agent.api.running import Running

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


def test_a_fleet_that_is_not_there_is_404(client: httpx.Client) -> None:
    answer = client.get(PATH, params={"fleet": "blue"})
    assert (answer.status_code, answer.json()["wrong"][0]["field"]) == (404, "fleet")


def test_the_path_tells_all_of_its_methods(client: httpx.Client) -> None:
    refused = client.request("PUT", PATH, json={})
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert client.request("PUT", f"{PATH}/build-7", json={}).headers["allow"] == "DELETE"
