"""The dry run's section on admission: the real agent, groups that ask, answers that can be read, the same each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.ledger import Ledger
from agent.rehearsal.admission import Admissions, play_admissions
from agent.rehearsal.admission_demand import Demand
from domain.decisions import Event, Reason
from domain.rules.admission.population import POPULATIONS

HOURS = 14


def played(directory: Path, mode: str = "act", hours: int = HOURS) -> tuple[Admissions, list[Event]]:
    told: list[Event] = []
    directory.mkdir()
    return play_admissions(directory, 1993, mode, {}, told.append, hours=hours), told


def test_the_same_seed_asks_for_the_same_and_another_for_something_else() -> None:
    def first_day(seed: int) -> list[tuple[str, int]]:
        demand = Demand(POPULATIONS["T"], 4, 1.5, seed)
        return [(one.name, one.vms) for _ in range(24) for one in demand.arrivals()]

    assert first_day(1993) == first_day(1993)
    assert first_day(1993) != first_day(7)


@pytest.mark.slow
def test_some_come_in_and_some_are_refused_the_same_way_each_time(tmp_path: Path) -> None:
    first, told = played(tmp_path / "first")
    assert first.admitted > 0
    assert sum(first.refused.values()) > 0
    assert first.asked == first.admitted + sum(first.refused.values())
    assert (first.waiting, first.capacity_cores) == (0, 256)
    assert first.peak_cores <= first.capacity_cores
    answers = [event for event in told if event.reason in (Reason.ADMITTED, *map(Reason, first.refused))]
    assert len(answers) == first.asked
    again, told_again = played(tmp_path / "again")
    unlike = {"ledger"}
    assert {k: v for k, v in again.as_json().items() if k not in unlike | {"next"}} == {
        k: v for k, v in first.as_json().items() if k not in unlike | {"next"}
    }
    assert [(event.reason, event.detail) for event in told_again] == [(event.reason, event.detail) for event in told]


@pytest.mark.slow
def test_why_one_was_refused_can_be_read_with_explain(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["dry-run", "--section", "admission", "--json", "--keep", str(tmp_path / "kept")])
    assert (ran.exit_code, ran.exception) == (0, None)
    said: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
    summary = said[-1]
    assert summary["kind"] == "admission"
    refused = {one["reason"] for one in said if one["kind"] == "event" and one["reason"].startswith("rejected_")}
    assert refused == set(summary["refused"]) != set()
    reason = sorted(summary["refused"])[0]
    command = summary["next"][0].split()
    told = CliRunner().invoke(app, command[command.index("explain") :])
    assert told.exit_code == 0
    assert summary["details"][reason] in told.stdout
    assert f"refused ({reason})" in told.stdout
    with Ledger.open(f"sqlite:///{tmp_path / 'kept' / 'ledger.db'}", read_only=True) as ledger:
        assert {record.open for record in ledger.gate.records().values()} == {False}


@pytest.mark.slow
def test_in_observe_mode_everybody_waits_and_advice_is_given(tmp_path: Path) -> None:
    found, told = played(tmp_path / "kept", mode="observe", hours=3)
    assert (found.admitted, found.refused, found.peak_cores) == (0, {}, 0)
    assert {event.reason for event in told} == {Reason.OBSERVE_MODE}
    assert found.asked == found.waiting == sum(found.advised.values()) == len({event.subject for event in told}) > 0
    assert f"{found.waiting} still wait, as the agent only observes; its advice: " in found.sentence()


def test_a_section_that_is_none_is_refused_by_name() -> None:
    ran = CliRunner().invoke(app, ["dry-run", "--section", "everything"])
    assert "choose one of: all, fleet, admission" in ran.output + str(ran.exception)
