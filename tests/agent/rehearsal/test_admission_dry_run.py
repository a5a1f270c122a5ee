"""The dry run's section on admission: the real agent, requests, explained decisions, the same each time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.admission.gate.records import group_records
from agent.commands.main import app
from agent.ledger import Ledger
from agent.rehearsal.admissions import AdmissionResult, Demand, play_admissions
from domain.decisions import Event, Reason
from domain.rules.admission.population import POPULATIONS


def played(directory: Path, mode: str = "act", **more: Any) -> tuple[AdmissionResult, list[Event]]:
    events: list[Event] = []
    directory.mkdir()
    return play_admissions(directory, 1993, mode, {}, events.append, **more), events


@dataclass(frozen=True)
class Kept:
    """A dry run of the section: its directory, its events and its summary."""

    directory: Path
    events: list[dict[str, Any]]
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """One run for all tests that only read it; it takes some seconds."""
    directory = tmp_path_factory.mktemp("dry-run") / "kept"
    ran = CliRunner().invoke(app, ["dry-run", "--section", "admission", "--json", "--keep", str(directory)])
    assert (ran.exit_code, ran.exception) == (0, None)
    entries: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
    return Kept(directory, [one for one in entries if one["kind"] == "event"], entries[-1])


@pytest.mark.exhaustive
def test_the_same_seed_draws_the_same_deployments_and_another_draws_others() -> None:
    def first_day(seed: int) -> list[tuple[str, int]]:
        demand = Demand(POPULATIONS["T"], 4, 1.5, seed)
        return [(one.name, one.vms) for _ in range(24) for one in demand.arrivals()]

    assert first_day(1993) == first_day(1993)
    assert first_day(1993) != first_day(7)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_some_deployments_are_admitted_and_some_refused(kept: Kept) -> None:
    summary, refused = kept.summary, sum(kept.summary["refused"].values())
    assert summary["kind"] == "admission"
    assert summary["admitted"] > 0
    assert refused > 0
    assert summary["asked"] == summary["admitted"] + refused
    assert (summary["waiting"], summary["capacity_cores"]) == (0, 256)
    assert summary["peak_cores"] <= summary["capacity_cores"]
    answers = [event for event in kept.events if event["reason"] in ("admitted", *summary["refused"])]
    assert len(answers) == summary["asked"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_same_seed_gives_the_same_result(kept: Kept, tmp_path: Path) -> None:
    again, _ = played(tmp_path / "again")
    alike = again.as_json().keys() - {"ledger", "program", "next"}
    assert {key: again.as_json()[key] for key in alike} == {key: kept.summary[key] for key in alike}
    with Ledger.open(f"sqlite:///{tmp_path / 'again' / 'ledger.db'}", read_only=True) as ledger:
        recorded = [(entry.at, entry.reason, entry.body["detail"]) for entry in ledger.journal(limit=10_000)]
    assert recorded == [(one["at"], one["reason"], one["detail"]) for one in kept.events] != []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_refusal_can_be_explained(kept: Kept) -> None:
    summary = kept.summary
    refused = {one["reason"] for one in kept.events if one["reason"].startswith("rejected_")}
    assert refused == set(summary["refused"]) != set()
    reason = sorted(summary["refused"])[0]
    command = summary["next"][0].split()
    explained = CliRunner().invoke(app, command[command.index("explain") :])
    assert explained.exit_code == 0
    assert summary["details"][reason] in explained.stdout
    assert f"refused ({reason})" in explained.stdout
    with Ledger.open(f"sqlite:///{kept.directory / 'ledger.db'}", read_only=True) as ledger:
        assert {record.open for record in group_records(ledger).read()[0].values()} == {False}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_in_observe_mode_every_deployment_waits_and_advice_is_given(tmp_path: Path) -> None:
    found, events = played(tmp_path / "kept", mode="observe", hours=3)
    assert (found.admitted, found.refused, found.peak_cores) == (0, {}, 0)
    assert {event.reason for event in events} == {Reason.OBSERVE_MODE}
    assert found.asked == found.waiting == sum(found.advised.values()) == len({event.subject for event in events}) > 0
    assert f"{found.waiting} still wait, as the agent only observes; its advice: " in found.sentence()


def test_a_section_that_is_none_is_refused_by_name() -> None:
    ran = CliRunner().invoke(app, ["dry-run", "--section", "everything"])
    assert "choose one of: all, fleet, admission" in ran.output + str(ran.exception)
