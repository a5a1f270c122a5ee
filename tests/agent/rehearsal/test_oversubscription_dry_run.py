"""The dry run's section on oversubscription: the real agent, lower rates, a surge, the same each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.ledger import Ledger
from agent.oversubscription.store import OversubscriptionStore
from agent.rehearsal.oversubscription import NINE_DAYS_H, PARAMETER, OversubscriptionResult, play_oversubscription
from domain.decisions import Event, Reason

SOONER = {
    "TRIMTAB_POOLS__research__SUBSCRIBERS__web__FIXED_RATE": "0.5",
    "TRIMTAB_POOLS__research__SUBSCRIBERS__guests__FIXED_RATE": "0.5",
}
"""A fixed rate is effective at once; a policy's takes days of history."""


def played(
    directory: Path, mode: str = "act", hours: int = 10, seed: int = 1993
) -> tuple[OversubscriptionResult, list[tuple[float, Reason, str, str]]]:
    events: list[Event] = []
    directory.mkdir()
    found = play_oversubscription(directory, seed, mode, SOONER, events.append, hours=hours)
    return found, [(event.at, event.reason, event.subject, event.detail) for event in events]


def without_place(found: OversubscriptionResult) -> dict[str, Any]:
    return {name: value for name, value in found.as_json().items() if name not in {"ledger", "next"}}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_same_seed_plays_the_same_hours_event_for_event_and_another_does_not(tmp_path: Path) -> None:
    first, events = played(tmp_path / "first")
    again, events_again = played(tmp_path / "again")
    assert without_place(again) == without_place(first)
    assert events_again == events
    assert Reason.RATES_CHANGED in {reason for _, reason, _, _ in events}
    other, events_other = played(tmp_path / "other", seed=7)
    assert (other.requests, events_other) != (first.requests, events)


@pytest.mark.exhaustive
def test_only_oversubscribed_subscribers_have_fewer_cores_reserved_and_the_rates_are_published(tmp_path: Path) -> None:
    found, _ = played(tmp_path / "kept")
    assert found.final == {"batch": 1.0, "guests": 1.0, "web": 0.5}
    assert 0.0 < found.saved_share < 0.5
    assert found.published == f"{found.examples['hour']} in {PARAMETER}"
    assert (found.hours, found.hot_hours) == (10, 0)


@pytest.mark.exhaustive
def test_in_observe_mode_nothing_is_published(tmp_path: Path) -> None:
    found, events = played(tmp_path / "kept", mode="observe", hours=3)
    assert found.published == ""
    assert Reason.RATES_PUBLISHED not in {reason for _, reason, _, _ in events}
    assert found.requests > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_rates_fall_a_surge_rolls_them_back_and_both_can_be_explained(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    ran = CliRunner().invoke(
        app, ["dry-run", "--section", "oversubscription", "--headless", "--json", "--keep", str(kept)]
    )
    assert (ran.exit_code, ran.exception) == (0, None)
    entries: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
    summary = entries[-1]
    assert (summary["kind"], summary["hours"]) == ("oversubscription", NINE_DAYS_H)
    assert summary["lowest"]["guests"] == 1.0
    assert max(summary["lowest"]["web"], summary["lowest"]["batch"]) < 1.0
    assert set(summary["final"].values()) == {1.0}
    assert (summary["happened"]["rates_frozen"], summary["happened"]["rates_rolled_back"]) == (1, 1)
    assert summary["hot_hours"] >= 3
    reasons = [one["reason"] for one in entries if one["kind"] == "event"]
    order = [reasons.index(reason) for reason in ("rates_changed", "machine_hot", "rates_frozen", "rates_rolled_back")]
    assert order == sorted(order)
    command = summary["next"][0].split()
    explained = CliRunner().invoke(app, command[command.index("explain") :])
    assert explained.exit_code == 0
    assert "Decided again from what is recorded: the same rates" in explained.stdout
    assert "rates_rolled_back" in explained.stdout
    with Ledger.open(f"sqlite:///{kept / 'ledger.db'}", read_only=True) as ledger:
        newest = OversubscriptionStore(ledger).newest("research", 1, "hour")
    assert newest[0].decision_id == summary["examples"]["hour"]
