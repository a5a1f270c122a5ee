"""The dry run's section on overselling: the real agent, a pool that is oversold, a surge, the same each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.ledger import Ledger
from agent.rehearsal.oversubscription import HOURS, PARAMETER, Oversold, play_oversubscription
from domain.decisions import Event, Reason

SOONER = {
    "TRIMTAB_POOLS__research__SUBSCRIBERS__web__FIXED_RATE": "0.5",
    "TRIMTAB_POOLS__research__SUBSCRIBERS__guests__FIXED_RATE": "0.5",
}
"""A rate that counts at once: a policy's would take days to be trusted."""


def played(
    directory: Path, mode: str = "act", hours: int = 10, seed: int = 1993
) -> tuple[Oversold, list[tuple[float, Reason, str, str]]]:
    told: list[Event] = []
    directory.mkdir()
    found = play_oversubscription(directory, seed, mode, SOONER, told.append, hours=hours)
    return found, [(event.at, event.reason, event.subject, event.detail) for event in told]


def without_place(found: Oversold) -> dict[str, Any]:
    return {name: value for name, value in found.as_json().items() if name not in {"ledger", "next"}}


@pytest.mark.slow
def test_the_same_seed_plays_the_same_hours_event_for_event_and_another_does_not(tmp_path: Path) -> None:
    first, told = played(tmp_path / "first")
    again, told_again = played(tmp_path / "again")
    assert without_place(again) == without_place(first)
    assert told_again == told
    assert Reason.RATES_CHANGED in {reason for _, reason, _, _ in told}
    other, told_other = played(tmp_path / "other", seed=7)
    assert (other.requests, told_other) != (first.requests, told)


def test_only_who_is_oversold_has_fewer_cores_reserved_and_the_rates_are_published(tmp_path: Path) -> None:
    found, _ = played(tmp_path / "kept")
    assert found.final == {"batch": 1.0, "guests": 1.0, "web": 0.5}
    assert 0.0 < found.saved_share < 0.5
    assert found.published == f"{found.examples['hour']} in {PARAMETER}"
    assert (found.hours, found.hot_hours) == (10, 0)


def test_in_observe_mode_nothing_is_published(tmp_path: Path) -> None:
    found, told = played(tmp_path / "kept", mode="observe", hours=3)
    assert found.published == ""
    assert Reason.RATES_PUBLISHED not in {reason for _, reason, _, _ in told}
    assert found.requests > 0


@pytest.mark.slow
def test_rates_come_down_a_surge_rolls_them_back_and_explain_tells_why(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    ran = CliRunner().invoke(
        app, ["dry-run", "--section", "oversubscription", "--headless", "--json", "--keep", str(kept)]
    )
    assert (ran.exit_code, ran.exception) == (0, None)
    said: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
    summary = said[-1]
    assert (summary["kind"], summary["hours"]) == ("oversubscription", HOURS)
    assert summary["lowest"]["guests"] == 1.0
    assert max(summary["lowest"]["web"], summary["lowest"]["batch"]) < 1.0
    assert set(summary["final"].values()) == {1.0}
    assert (summary["happened"]["rates_frozen"], summary["happened"]["rates_rolled_back"]) == (1, 1)
    assert summary["hot_hours"] >= 3
    told = [one["reason"] for one in said if one["kind"] == "event"]
    order = [told.index(reason) for reason in ("rates_changed", "machine_hot", "rates_frozen", "rates_rolled_back")]
    assert order == sorted(order)
    command = summary["next"][0].split()
    explained = CliRunner().invoke(app, command[command.index("explain") :])
    assert explained.exit_code == 0
    assert "Decided again from what is recorded: the same rates" in explained.stdout
    assert "rates_rolled_back" in explained.stdout
    with Ledger.open(f"sqlite:///{kept / 'ledger.db'}", read_only=True) as ledger:
        newest = ledger.oversubscription.newest("research", 1, "hour")
    assert newest[0].decision_id == summary["examples"]["hour"]
