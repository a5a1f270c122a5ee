"""What the routes that read answer, on an agent whose loop really turns, over a real socket."""

import httpx
import pytest

from agent.autoscaling.state import FleetStore
from agent.autoscaling.view import fleet_status
from agent.ledger.codec import plain
from agent.settings.names import effective
from domain.controls import Pause, PauseScope
from tests.agent.api.running import Running
from tests.faults.world import START


def test_status_holds_the_agent_and_every_fleet(client: httpx.Client) -> None:
    status = client.get("/api/v1/status").raise_for_status().json()
    assert (status["mode"], status["turns"], status["failed_turns"]) == ("act", 3, 0)
    assert (status["leader"], status["epoch"], status["stopping"]) == (True, 1, False)
    assert status["started_at"] == START
    assert status["last_turn_at"] == START + 185.0
    assert [fleet["fleet"] for fleet in status["fleets"]] == ["web"]


def test_a_fleet_is_what_the_command_line_shows(client: httpx.Client, running: Running) -> None:
    running.world.ledger.pause("autoscaling", "web", Pause(PauseScope.IN, "ada", "test", START, None))
    shown = plain(fleet_status(FleetStore(running.world.ledger), "web", running.world.agent_clock.now()))
    assert client.get("/api/v1/autoscaling/web").json() == shown
    assert client.get("/api/v1/autoscaling").json() == [shown]
    assert shown["pauses"][0]["owner"] == "ada"
    assert [group["requested"] for group in shown["groups"]] == [2, 0, 2]


def test_vms_say_since_when_they_do_not_report(client: httpx.Client, running: Running) -> None:
    silent = running.world.in_service("small")[0]
    running.world.silent = {silent}
    running.tick(2)
    reports = {vm["vm"]: vm for vm in client.get("/api/v1/autoscaling/web/vms").json()}
    assert reports[silent] == {"group": "small", "vm": silent, "reporting": False, "last_sample_at": START + 180.0}
    new = [vm for vm in reports.values() if vm["last_sample_at"] is None]
    assert [vm["reporting"] for vm in new] == [False], "one more was asked for and has never reported"
    others = [vm for name, vm in reports.items() if name != silent and vm not in new]
    assert len(others) == 3
    assert all(vm["reporting"] and vm["last_sample_at"] == START + 300.0 for vm in others)


def test_decisions_page_backwards_without_gap_or_overlap(client: httpx.Client, running: Running) -> None:
    running.tick(4)
    seen, before = [], None
    while True:
        page = client.get("/api/v1/decisions", params={"limit": 3, "before_seq": before} if before else {"limit": 3})
        seen += [row["decision"]["decision_id"] for row in page.json()["decisions"]]
        before = page.json()["next_before_seq"]
        if before is None:
            break
    assert seen == [f"web-{n}" for n in range(7, 0, -1)]


def test_only_decisions_that_changed_something(client: httpx.Client) -> None:
    rows = client.get("/api/v1/decisions", params={"changed": True, "fleet": "web"}).json()["decisions"]
    assert [row["decision"]["decision_id"] for row in rows] == ["web-1"]
    assert len(rows[0]["decision"]["intents"]) == 2


def test_one_decision_has_inputs_rails_outcomes_and_words(client: httpx.Client) -> None:
    told = client.get("/api/v1/decisions/web-1").json()
    assert told["decision"]["reason"] == "queue_grew"
    assert told["inputs"]["snapshot"]["queue"]["waiting"] == 20
    assert [intent["outcomes"][-1]["status"] for intent in told["intents"]] == ["done", "done"]
    assert told["explanation"]["seen"][-1].startswith("20 jobs wait")


def test_what_is_not_there_is_404_with_what_there_is(client: httpx.Client) -> None:
    for path in ("fleets/blue", "fleets/blue/vms", "decisions/web-99", "fleets/web/nothing"):
        answer = client.get(f"/api/v1/{path}")
        assert (path, answer.status_code, answer.json()["error"]) == (path, 404, "Not Found")


def test_the_journal_can_be_followed_from_any_point(client: httpx.Client, running: Running) -> None:
    first = client.get("/api/v1/events", params={"limit": 4}).json()
    rest = client.get("/api/v1/events", params={"since_seq": first["next_since_seq"]}).json()
    numbers = [row["seq"] for row in first["events"] + rest["events"]]
    assert numbers == [entry.seq for entry in running.world.journal]
    end = client.get("/api/v1/events", params={"since_seq": rest["next_since_seq"]}).json()
    assert end == {"events": [], "next_since_seq": rest["next_since_seq"]}
    running.tick()
    new = client.get("/api/v1/events", params={"since_seq": end["next_since_seq"], "kind": "decision"}).json()
    assert [row["ref"] for row in new["events"]] == ["web-4"]


def test_collectors_and_listener_tell_how_they_fare(client: httpx.Client, running: Running) -> None:
    running.collectors["queue web"].last_error = "TimeoutError: no answer"
    running.world._reader.feed(b"gibberish\n")
    inputs = client.get("/api/v1/collectors").json()
    assert inputs["collectors"][0]["name"] == "queue web"
    assert (inputs["collectors"][0]["ok"], inputs["collectors"][0]["last_error"]) == (False, "TimeoutError: no answer")
    assert inputs["listener"]["rejected"]["malformed"] == 1
    assert inputs["listener"]["examples"] == {"malformed": "gibberish"}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "query.limit"),
        ("limit=x", "query.limit"),
        ("before_seq=-1", "query.before_seq"),
        ("before_seq=99999999999999999999999", "query.before_seq"),
        ("changed=perhaps", "query.changed"),
    ],
)
def test_a_wrong_value_is_422_and_names_its_field(client: httpx.Client, query: str, field: str) -> None:
    answer = client.get(f"/api/v1/decisions?{query}")
    assert answer.status_code == 422
    assert [wrong["field"] for wrong in answer.json()["wrong"]] == [field]


def test_settings_are_shown_without_secrets(shared: Running) -> None:
    shown = effective(shared.settings)
    assert shown["TRIMTAB_MODE"] == "act"
    assert shown["TRIMTAB_HTTP__TOKEN"] == "(not set)"


def test_a_ledger_that_cannot_be_read_is_503_and_tells_no_path(client: httpx.Client, running: Running) -> None:
    running.lose_ledger()
    answer = client.get("/api/v1/status")
    assert answer.status_code == 503
    assert "ledger.db" not in answer.text


@pytest.mark.parametrize("path", ["/api/v1/status", "/api/v1/openapi.json"])
def test_a_long_answer_is_compressed_for_a_client_that_takes_gzip(client: httpx.Client, path: str) -> None:
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    packed = client.get(path, headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert int(packed.headers["content-length"]) < 0.5 * len(plain.content)
    assert len(packed.content) > 0.9 * len(plain.content)
    assert plain.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        *[("GZIP", True), ("br, gzip;q=0.5", True), ("*", True)],
        *[("*;q=1, gzip;q=0", False), ("gzip;q=0.000", False), ("notgzip", False), ("x-gzip;q=1", False), ("", False)],
    ],
)
def test_the_weights_of_accept_encoding_decide(client: httpx.Client, accepted: str, packed: bool) -> None:
    answer = client.get("/api/v1/openapi.json", headers={"Accept-Encoding": accepted})
    assert ("content-encoding" in answer.headers, answer.headers["vary"]) == (packed, "Accept-Encoding")


def test_a_short_answer_is_not_compressed(client: httpx.Client) -> None:
    assert "content-encoding" not in client.get("/healthz", headers={"Accept-Encoding": "gzip"}).headers
