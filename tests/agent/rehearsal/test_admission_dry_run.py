"""The dry run's section on admission: the real agent, groups that ask, answers that can be read, the same each time."""

from __future__ import annotations

import json
from dataclasses import dataclass
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


def played(directory: Path, mode: str = "act", **more: Any) -> tuple[Admissions, list[Event]]:
    told: list[Event] = []
    directory.mkdir()
    return play_admissions(directory, 1993, mode, {}, told.append, **more), told


@dataclass(frozen=True)
class Kept:
    """A dry run of the section, as its command said and kept it."""

    directory: Path
    events: list[dict[str, Any]]
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """One run for all who only read it; it takes some seconds."""
    directory = tmp_path_factory.mktemp("dry-run") / "kept"
    ran = CliRunner().invoke(app, ["dry-run", "--section", "admission", "--json", "--keep", str(directory)])
    assert (ran.exit_code, ran.exception) == (0, None)
    said: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
    return Kept(directory, [one for one in said if one["kind"] == "event"], said[-1])


def test_the_same_seed_asks_for_the_same_and_another_for_something_else() -> None:
    def first_day(seed: int) -> list[tuple[str, int]]:
        demand = Demand(POPULATIONS["T"], 4, 1.5, seed)
        return [(one.name, one.vms) for _ in range(24) for one in demand.arrivals()]

    assert first_day(1993) == first_day(1993)
    assert first_day(1993) != first_day(7)


@pytest.mark.slow
def test_some_come_in_and_some_are_refused(kept: Kept) -> None:
    summary, refused = kept.summary, sum(kept.summary["refused"].values())
    assert summary["kind"] == "admission"
    assert summary["admitted"] > 0
    assert refused > 0
    assert summary["asked"] == summary["admitted"] + refused
    assert (summary["waiting"], summary["capacity_cores"]) == (0, 256)
    assert summary["peak_cores"] <= summary["capacity_cores"]
    answers = [event for event in kept.events if event["reason"] in ("admitted", *summary["refused"])]
    assert len(answers) == summary["asked"]


@pytest.mark.slow
def test_the_same_comes_of_it_each_time(kept: Kept, tmp_path: Path) -> None:
    again, _ = played(tmp_path / "again")
    alike = again.as_json().keys() - {"ledger", "program", "next"}
    assert {key: again.as_json()[key] for key in alike} == {key: kept.summary[key] for key in alike}
    with Ledger.open(f"sqlite:///{tmp_path / 'again' / 'ledger.db'}", read_only=True) as ledger:
        told = [(entry.at, entry.reason, entry.body["detail"]) for entry in ledger.journal(limit=10_000)]
    assert told == [(one["at"], one["reason"], one["detail"]) for one in kept.events] != []


@pytest.mark.slow
def test_why_one_was_refused_can_be_read_with_explain(kept: Kept) -> None:
    summary = kept.summary
    refused = {one["reason"] for one in kept.events if one["reason"].startswith("rejected_")}
    assert refused == set(summary["refused"]) != set()
    reason = sorted(summary["refused"])[0]
    command = summary["next"][0].split()
    told = CliRunner().invoke(app, command[command.index("explain") :])
    assert told.exit_code == 0
    assert summary["details"][reason] in told.stdout
    assert f"refused ({reason})" in told.stdout
    with Ledger.open(f"sqlite:///{kept.directory / 'ledger.db'}", read_only=True) as ledger:
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
