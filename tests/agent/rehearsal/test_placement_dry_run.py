"""The dry run's section on placement: the real agent, a large request, a host that fails, the same each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.rehearsal.placements import FAILS_AT, HOSTS, PlacementResult, inventory, play_placements
from domain.decisions import Event, Reason
from domain.rules.placement.instance import parse_instance


def played(
    directory: Path, mode: str = "act", hours: int = 4, seed: int = 1993
) -> tuple[PlacementResult, list[tuple[float, Reason, str, str]]]:
    events: list[Event] = []
    directory.mkdir()
    found = play_placements(directory, seed, mode, {}, events.append, hours=hours)
    return found, [(event.at, event.reason, event.subject, event.detail) for event in events]


def without_place(found: PlacementResult) -> dict[str, Any]:
    return {name: value for name, value in found.as_json().items() if name not in {"ledger", "next"}}


def test_its_inventory_is_one_that_a_pool_takes() -> None:
    instance, warnings = parse_instance(inventory(7))
    assert (instance.hosts[0].count, warnings) == (HOSTS, ())
    assert inventory(7) == inventory(7) != inventory(8)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_same_seed_plays_the_same_hours_event_for_event_and_another_does_not(tmp_path: Path) -> None:
    first, events = played(tmp_path / "first")
    again, events_again = played(tmp_path / "again")
    assert without_place(again) == without_place(first)
    assert events_again == events
    other, events_other = played(tmp_path / "other", seed=7)
    assert (other.requests, events_other) != (first.requests, events)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_host_fails_and_loses_nothing(tmp_path: Path) -> None:
    found, events = played(tmp_path / "kept", hours=FAILS_AT + 1)
    assert found.moved > 0
    assert Reason.HOST_FAILED in {reason for _, reason, _, _ in events}
    assert (found.saved is not None, found.shadow) == (True, "RESERVE(10, 8, 10)")


@pytest.mark.exhaustive
def test_in_observe_mode_it_is_all_advice(tmp_path: Path) -> None:
    found, _ = played(tmp_path / "kept", mode="observe", hours=2)
    assert (found.containers, found.open_hosts) == (0, 0)
    assert found.advised == found.requests > 0
    assert "by advice alone" in found.sentence()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_verb_plays_it_and_says_how_to_ask_why(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    done = CliRunner().invoke(app, ["dry-run", "--section", "placement", "--json", "--keep", kept])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["kind"], result["hours"]) == ("placement", 50)
    assert "explain hosts-p" in result["next"][0]
