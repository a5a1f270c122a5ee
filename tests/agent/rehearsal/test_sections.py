"""The sections of the dry run beside its fleet: the real agent on a virtual clock, the same each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.admission.gate.records import group_records
from agent.commands.main import app
from agent.ledger import Ledger
from agent.oversubscription.state import OversubscriptionStore
from agent.rehearsal import placements
from agent.rehearsal.admissions import Demand, play_admissions
from agent.rehearsal.deferrals import CORES, play_deferral
from agent.rehearsal.oversubscription import NINE_DAYS_H, PARAMETER, play_oversubscription
from agent.rehearsal.placements import FAILS_AT, HOSTS, coupled_fleet_hours, fleet_instance, inventory, play_placements
from domain.decisions import Event, Reason
from domain.rules.admission.population import POPULATIONS
from domain.rules.placement.instance import Instance, parse_instance
from domain.rules.placement.policies import Policy
from simulator.placement.fleet import FleetOutcome


@dataclass(frozen=True)
class Play:
    """A section, with settings that make a short run worth looking at, and the figure that its requests are."""

    section: Callable[..., Any]
    hours: int
    requests: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def run(self, directory: Path, mode: str = "act", hours: int = 0, seed: int = 1993) -> tuple[Any, list[Event]]:
        """Play this many hours; return the result and every event."""
        events: list[Event] = []
        directory.mkdir()
        found = self.section(directory, seed, mode, self.settings, events.append, hours=hours or self.hours)
        return found, events


FIXED = ("web", "guests")
PLAYS = {
    "admission": Play(play_admissions, 12, "asked"),
    # A fixed rate is effective at once; a policy's takes days of history.
    "oversubscription": Play(
        play_oversubscription,
        10,
        "requests",
        {f"TRIMTAB_POOLS__research__SUBSCRIBERS__{name}__FIXED_RATE": "0.5" for name in FIXED},
    ),
    "placement": Play(play_placements, 4, "requests"),
    "deferral": Play(play_deferral, 6, "jobs", {"TRIMTAB_DEFERRALS__valley__POLICY": "knapsack"}),
}
every_section = pytest.mark.parametrize("name", PLAYS)


def figures(found: Any) -> dict[str, Any]:
    return {name: value for name, value in found.as_json().items() if name not in {"ledger", "program", "next"}}


@pytest.mark.exhaustive
@every_section
def test_the_same_seed_plays_the_same_hours_event_for_event_and_another_does_not(name: str, tmp_path: Path) -> None:
    first, events = PLAYS[name].run(tmp_path / "first")
    again, events_again = PLAYS[name].run(tmp_path / "again")
    assert (figures(again), events_again) == (figures(first), events)
    other, events_other = PLAYS[name].run(tmp_path / "other", seed=7)
    requests = PLAYS[name].requests
    assert (getattr(other, requests), events_other) != (getattr(first, requests), events)


@dataclass(frozen=True)
class Kept:
    """A dry run of one section by the verb: its directory, its events, its summary, and what explains it."""

    directory: Path
    events: list[dict[str, Any]]
    summary: dict[str, Any]
    explained: str


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Kept]:
    """Run the verb once for each section; it takes some seconds."""
    made: dict[str, Kept] = {}

    def run(name: str) -> Kept:
        if name not in made:
            directory = tmp_path_factory.mktemp("dry-run") / "kept"
            ran = CliRunner().invoke(app, ["dry-run", "--section", name, "--json", "--keep", str(directory)])
            assert (ran.exit_code, ran.exception) == (0, None)
            entries: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
            command = entries[-1]["next"][0].split()
            explained = CliRunner().invoke(app, command[command.index("explain") :])
            assert explained.exit_code == 0, explained.output
            events = [one for one in entries if one["kind"] == "event"]
            made[name] = Kept(directory, events, entries[-1], explained.stdout)
        return made[name]

    return run


@pytest.mark.exhaustive
def test_some_deployments_are_admitted_some_refused_and_a_refusal_can_be_explained(
    kept_runs: Callable[[str], Kept],
) -> None:
    kept = kept_runs("admission")
    summary, refused = kept.summary, sum(kept.summary["refused"].values())
    assert summary["kind"] == "admission"
    assert summary["admitted"] > 0
    assert refused > 0
    assert summary["asked"] == summary["admitted"] + refused
    assert (summary["waiting"], summary["capacity_cores"]) == (0, 256)
    assert summary["peak_cores"] <= summary["capacity_cores"]
    assert len([one for one in kept.events if one["reason"] in ("admitted", *summary["refused"])]) == summary["asked"]
    assert {one["reason"] for one in kept.events if one["reason"].startswith("rejected_")} == set(summary["refused"])
    reason = sorted(summary["refused"])[0]
    assert summary["details"][reason] in kept.explained
    assert f"refused ({reason})" in kept.explained
    with Ledger.open(f"sqlite:///{kept.directory / 'ledger.db'}", read_only=True) as ledger:
        assert {record.open for record in group_records(ledger).read()[0].values()} == {False}
        recorded = [(entry.at, entry.reason, entry.body["detail"]) for entry in ledger.journal(limit=10_000)]
    assert recorded == [(one["at"], one["reason"], one["detail"]) for one in kept.events] != []


@pytest.mark.exhaustive
def test_rates_fall_a_surge_rolls_them_back_and_both_can_be_explained(kept_runs: Callable[[str], Kept]) -> None:
    kept = kept_runs("oversubscription")
    summary = kept.summary
    assert (summary["kind"], summary["hours"]) == ("oversubscription", NINE_DAYS_H)
    assert summary["lowest"]["guests"] == 1.0
    assert max(summary["lowest"]["web"], summary["lowest"]["batch"]) < 1.0
    assert set(summary["final"].values()) == {1.0}
    assert (summary["happened"]["rates_frozen"], summary["happened"]["rates_rolled_back"]) == (1, 1)
    assert summary["hot_hours"] >= 3
    reasons = [one["reason"] for one in kept.events]
    order = [reasons.index(reason) for reason in ("rates_changed", "machine_hot", "rates_frozen", "rates_rolled_back")]
    assert order == sorted(order)
    assert "the same rates" in kept.explained
    assert "rates_rolled_back" in kept.explained
    with Ledger.open(f"sqlite:///{kept.directory / 'ledger.db'}", read_only=True) as ledger:
        newest = OversubscriptionStore(ledger).newest("research", 1, "hour")
    assert newest[0].decision_id == summary["examples"]["hour"]


@pytest.mark.exhaustive
def test_the_verb_plays_placement_and_says_how_to_ask_why(kept_runs: Callable[[str], Kept]) -> None:
    kept = kept_runs("placement")
    assert (kept.summary["kind"], kept.summary["hours"]) == ("placement", 50)
    assert "hosts-p" in kept.explained


@pytest.mark.exhaustive
def test_the_same_seed_draws_the_same_deployments_and_another_draws_others() -> None:
    def first_day(seed: int) -> list[tuple[str, int]]:
        demand = Demand(POPULATIONS["T"], 4, 1.5, seed)
        return [(one.name, one.vms) for _ in range(24) for one in demand.arrivals()]

    assert first_day(1993) == first_day(1993) != first_day(7)


@pytest.mark.exhaustive
def test_only_oversubscribed_subscribers_have_fewer_cores_reserved_and_the_rates_are_published(tmp_path: Path) -> None:
    found, events = PLAYS["oversubscription"].run(tmp_path / "kept")
    assert found.final == {"batch": 1.0, "guests": 1.0, "web": 0.5}
    assert 0.0 < found.saved_share < 0.5
    assert found.published == f"{found.examples['hour']} in {PARAMETER}"
    assert (found.hours, found.hot_hours) == (10, 0)
    assert Reason.RATES_CHANGED in {event.reason for event in events}


@pytest.mark.exhaustive
def test_a_host_fails_and_loses_nothing(tmp_path: Path) -> None:
    found, events = PLAYS["placement"].run(tmp_path / "kept", hours=FAILS_AT + 1)
    assert found.moved > 0
    assert Reason.HOST_FAILED in {event.reason for event in events}
    assert (found.saved is not None, found.shadow) == (True, "RESERVE(10, 8, 10)")


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_jobs_fill_the_night_and_each_start_comes_once(tmp_path: Path) -> None:
    found, _ = PLAYS["deferral"].run(tmp_path / "act", hours=50)
    assert (found.left, found.sent, found.sent_twice, found.advised) == (0, found.started, 0, 0)
    night, day = found.by_hour[3], found.by_hour[15]
    assert night[1] > 1.5 * day[1]
    assert all(demand + jobs <= CORES + 30 for demand, jobs in found.by_hour.values())
    assert found.utilisation > 0.5
    assert f"started: {found.started}" in found.figures()


@pytest.mark.exhaustive
@every_section
def test_in_observe_mode_there_is_advice_and_nothing_is_changed(name: str, tmp_path: Path) -> None:
    found, events = PLAYS[name].run(tmp_path / "kept", mode="observe", hours=3)
    reasons = {event.reason for event in events}
    assert getattr(found, PLAYS[name].requests) > 0
    match name:
        case "admission":
            assert (found.admitted, found.refused, found.peak_cores) == (0, {}, 0)
            assert reasons == {Reason.OBSERVE_MODE}
            subjects = {event.about for event in events}
            assert found.asked == found.waiting == sum(found.advised.values()) == len(subjects)
        case "oversubscription":
            assert (found.published, Reason.RATES_PUBLISHED in reasons) == ("", False)
        case "placement":
            assert (found.containers, found.open_hosts, found.advised) == (0, 0, found.requests)
        case _:
            assert (found.left, found.sent, found.started) == (found.jobs, 0, 0)


def test_the_inventory_of_placement_is_one_that_a_pool_takes() -> None:
    instance, warnings = parse_instance(inventory(7))
    assert (instance.hosts[0].count, warnings) == (HOSTS, ())
    assert inventory(7) == inventory(7) != inventory(8)


def test_a_section_that_does_not_exist_is_refused_with_those_there_are() -> None:
    ran = CliRunner().invoke(app, ["dry-run", "--section", "everything"])
    told = ran.output + str(ran.exception)
    assert [name for name in ("all", "fleet", *PLAYS) if name not in told] == []


def test_the_machine_hours_of_a_coupled_fleet_have_an_interval_over_five_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[tuple[int, bool]] = []

    def play(instance: Instance, policy: Policy, *, coupled: bool, seed: int, measured_from_s: float) -> FleetOutcome:
        assert [one.name for one in instance.requests] == [one.name for one in fleet_instance(seed).requests]
        played.append((seed, coupled))
        return FleetOutcome(100.0 - seed if coupled else 100.0, 0.0, 0.0, 0.0)

    monkeypatch.setattr(placements, "play_fleet", play)
    assert coupled_fleet_hours(1) == pytest.approx((0.97, 0.97 - 0.01963, 0.97 + 0.01963), abs=1e-5)
    assert played == [(seed, coupled) for seed in range(1, 6) for coupled in (False, True)]


def test_a_fleet_of_the_dry_run_has_requests_that_a_seed_decides_and_that_end() -> None:
    one, again, other = fleet_instance(1), fleet_instance(1), fleet_instance(2)
    assert one == again != other
    times = [request.at_s for request in one.requests]
    assert times == sorted(times)
    assert len(one.releases) == one.containers > 200
