"""The end of a probation: what was promised is looked up in the ledger, and one replacement puts a model in use."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.models.directory import ModelRefused, Then
from agent.models.rounds import read_rounds
from agent.rehearsal.virtual_time import START
from domain.errors import BadInput
from domain.units import HOUR_S
from simulator.autoscaling.world_file import World, write_world
from tests.golden import check_wording
from tests.trainer.learning.recording import FLEET, RULE, WORLD
from tests.trainer.learning.tried import HOURS, SUBJECT, Site, name_of
from trainer.learning.fleet_trial import Divergence, ProbationWindow, Situation, divergence_of, replayed
from trainer.learning.trial import ProbationStatus, examine, judged, write_probation


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An hour of the thrifty scorer with the lavish one beside it; tests only read it."""
    site = Site(tmp_path_factory.mktemp("hour"))
    site.promoted(site.thrifty, 0.0)
    site.tried(site.lavish, 1.0)
    site.live([(site.thrifty, 1.0)], shadow=site.lavish)
    return site


def test_where_a_shadow_differs_is_counted_by_situation(hour: Site) -> None:
    one = hour.directory.probationers()[SUBJECT]
    found = divergence_of(str(hour.ledger), FLEET, one)
    assert (found.minutes, found.asked, found.failed) == (60, 60, 0)
    by_name = {one.name: one for one in found.situations}
    every, waiting = by_name["all"], by_name["jobs wait"]
    assert every.minutes == 60
    assert 0 < waiting.minutes < 60
    assert waiting.differing <= every.differing
    assert every.differing > 0
    # It asks for more wherever it may.
    assert every.vms > 0.0
    assert every.cores > every.vms
    assert by_name["work is announced"].minutes == 0
    assert f"{every.differing / 60:.1%} of 60 minutes" in found.sentence


def test_proposals_of_another_model_are_none_of_the_challengers(hour: Site) -> None:
    one = replace(hour.directory.probationers()[SUBJECT], model=hour.wary.name)
    assert divergence_of(str(hour.ledger), FLEET, one).asked == 0
    assert divergence_of(str(hour.ledger), "other", one).minutes == 0


def test_what_stood_in_for_a_shadow_that_failed_is_counted_apart(site: Site) -> None:
    gone = site.folder / f"{'0' * 64}.onnx"
    one = site.tried(site.thrifty, 1.0)
    site.live([(RULE, 0.2)], shadow=gone)
    found = divergence_of(str(site.ledger), FLEET, replace(one, model=gone.name))
    assert (found.minutes, found.asked, found.failed) == (12, 0, 12)


def test_hours_that_are_not_over_are_waited_for(hour: Site) -> None:
    one = hour.directory.probationers()[SUBJECT]
    found = examine(hour.look(0.9), one)
    assert found.status is ProbationStatus.RUNNING
    assert "2026-11-20T22:10:00Z" in found.why


def test_too_few_minutes_let_it_go_on_for_twice_its_hours_at_most(hour: Site) -> None:
    one = hour.directory.probationers()[SUBJECT]
    found = examine(hour.look(1.1), one)
    assert (found.status, found.replay is not None) == (ProbationStatus.WAITING, True)
    assert re.search(r"1 windows, 8 .* 2026-11-20T23:10:00Z", found.why)
    late = examine(hour.look(2.0), one)
    assert late.status is ProbationStatus.GIVEN_UP
    longer = examine(hour.look(3.1), replace(one, hours=3.0))
    assert re.search(r"60 of .* 90 are needed", longer.why)
    other = divergence_of(str(hour.ledger), FLEET, replace(one, model=hour.wary.name))
    cases = {"running": examine(hour.look(0.9), one), "too little": found, "over": late, "few proposals": longer}
    check_wording("learning-probation", {"other model": other.sentence} | {name: at.why for name, at in cases.items()})


def test_a_champion_that_changed_ends_it(hour: Site, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.promoted(site.thrifty, 0.0)
    one = site.tried(site.lavish, 1.0)
    site.promoted(site.wary, 0.5)
    found = examine(site.look(0.6), one)
    assert found.status is ProbationStatus.GIVEN_UP
    assert site.wary.name in found.why


@pytest.mark.parametrize(
    ("mean", "spread", "status", "why"),
    [
        (-0.04, 0.01, ProbationStatus.HELD, "cost -4.0%"),
        (0.0, 0.01, ProbationStatus.HELD, "-5.0%"),
        (0.04, 0.3, ProbationStatus.HELD, "cost +4.0%"),
        (0.04, 0.01, ProbationStatus.BROKEN, "it is surely dearer"),
        (0.06, 0.3, ProbationStatus.BROKEN, "more than +5%"),
    ],
)
def test_a_promise_holds_while_it_is_not_surely_dearer_nor_beyond_the_gates_limit(
    hour: Site, mean: float, spread: float, status: ProbationStatus, why: str
) -> None:
    windows = [ProbationWindow(f"{k}", 1.0, 1.0, 1.0, 1.0 + mean + spread * (-1) ** k) for k in range(12)]
    every = Divergence(600, 600, 0, (Situation("all", 600, 60, 1.5, 3.0),))
    one = hour.directory.probationers()[SUBJECT]
    found = judged(hour.look(1.0), one, replayed(every, -0.05, tuple(windows)))
    assert found.status is status
    assert why in found.why
    assert re.search(r"10\.0% of 600 .* \+1\.5 VMs .* \+3\.0 cores", found.why)


def test_a_report_or_a_file_that_was_tampered_with_is_refused_and_nothing_changes(site: Site) -> None:
    site.promoted(site.thrifty, 0.0)
    one = site.tried(site.lavish, 1.0)
    before = (site.directory.path / "champion.json").read_bytes()
    report, model = site.directory.path / one.report, site.directory.path / one.model
    whole = report.read_text()
    report.write_text(whole.replace("-0.05", "-0.50"))
    shown = CliRunner().invoke(app, words(site, 3.0))
    assert (shown.exit_code, "its seal does not hold" in shown.output) == (2, True)
    with pytest.raises(BadInput, match="its seal does not hold"):
        examine(site.look(3.0), one)
    report.write_text(whole)
    model.write_bytes(b"another")
    with pytest.raises(ModelRefused):
        examine(site.look(3.0), one)
    assert (site.directory.path / "champion.json").read_bytes() == before
    status = read_rounds(site.directory.path, "autoscaling")[0][FLEET]
    assert status.outcome == "failed"


def words(site: Site, at_hour: float, *more: str) -> list[str]:
    place = ["--models-dir", str(site.directory.path), "--out", str(site.folder / "round")]
    return [
        *("learn", "autoscaling", FLEET, "--ledger", str(site.ledger), *place),
        *("--at", str(START + at_hour * HOUR_S), "--watch-hours", "0", *more),
    ]


def ended(site: Site) -> tuple[str, str | None]:
    """The outcome that the agent sees, and what decides."""
    status = read_rounds(site.directory.path, "autoscaling")[0][FLEET]
    champion = site.directory.champion(SUBJECT)
    return str(status.outcome), None if champion is None else champion.model


def test_while_it_runs_the_command_begins_no_new_round(hour: Site) -> None:
    shown = CliRunner().invoke(app, words(hour, 0.5))
    assert shown.exit_code == 0, shown.output
    assert "2026-11-20T21:10:00Z" in shown.output
    assert ended(hour) == ("probation", hour.thrifty.name)
    assert not (hour.folder / "round" / "state.json").exists()


def test_one_that_cannot_be_judged_in_twice_its_hours_is_ended_with_the_reason(site: Site) -> None:
    site.promoted(site.thrifty, 0.0)
    site.tried(site.lavish, 1.0)
    site.live([(site.thrifty, 0.3)])
    shown = CliRunner().invoke(app, words(site, 2.1))
    assert shown.exit_code == 1
    assert ended(site) == ("refused", site.thrifty.name)
    assert site.directory.probationers() == {}
    event, reason = site.events()[-1]
    assert (event, reason.split()[0]) == ("probation ended", "0")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Hours of the lavish scorer, with the thrifty one beside it."""
    site = Site(tmp_path_factory.mktemp("long"))
    site.live([(site.lavish, HOURS)], shadow=site.thrifty)
    return site


def begun(long: Site, folder: Path, then: Then = Then.PROMOTE, challenger: str = "thrifty") -> Site:
    site = Site(folder)
    site.ledger = long.ledger
    site.promoted(site.lavish, 0.0)
    site.tried(getattr(site, challenger), HOURS, then)
    return site


@pytest.mark.exhaustive
def test_one_that_held_is_promoted_or_waits_or_nothing_follows_as_set(long: Site, tmp_path: Path) -> None:
    site = begun(long, tmp_path / "promote")
    trial = CliRunner().invoke(app, words(site, HOURS + 0.1, "--try"))
    assert (trial.exit_code, site.directory.probationers() == {}) == (0, False)
    shown = CliRunner().invoke(app, words(site, HOURS + 0.1))
    assert shown.exit_code == 0, shown.output
    assert ended(site) == ("promoted", site.thrifty.name)
    data = json.loads((site.folder / "round" / "probation" / "summary.json").read_text())
    assert data["status"] == "held"
    assert data["comparison"]["relative"]["high"] < 0.0
    page = (site.folder / "round" / "probation" / "report.html").read_text()
    assert "Where they differ" in page
    waits = begun(long, tmp_path / "approve", Then.APPROVE)
    assert "trimtab approve " in CliRunner().invoke(app, words(waits, HOURS + 0.1)).output
    assert ended(waits) == ("probation", waits.lavish.name)
    report_only = begun(long, tmp_path / "nothing", Then.NOTHING)
    assert CliRunner().invoke(app, words(report_only, HOURS + 0.1)).exit_code == 0
    assert ended(report_only) == ("kept", report_only.lavish.name)
    assert report_only.directory.probationers() == {}


@pytest.mark.exhaustive
def test_one_that_did_not_hold_is_ended(site: Site) -> None:
    site.promoted(site.thrifty, 0.0)
    site.tried(site.lavish)
    site.live([(site.thrifty, HOURS)], shadow=site.lavish)
    shown = CliRunner().invoke(app, words(site, HOURS + 0.1))
    assert shown.exit_code == 1, shown.output
    assert ended(site) == ("refused", site.thrifty.name)
    assert "more than +5%" in site.events()[-1][1]


@pytest.mark.exhaustive
def test_a_simulator_that_is_not_true_to_these_hours_judges_nobody(long: Site, tmp_path: Path) -> None:
    site = begun(long, tmp_path)
    write_world(World(WORLD.boots_scaled(4.0), "lie"), tmp_path / "lie.toml")
    found = examine(site.look(HOURS + 0.1, tmp_path / "lie.toml"), site.directory.probationers()[SUBJECT])
    assert found.status is ProbationStatus.WAITING
    assert "simulator is not true" in found.why


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", ["write_probation", "approve", "write_round"])
def test_a_command_that_is_killed_between_its_stages_is_gone_on_with(long: Site, tmp_path: Path, point: str) -> None:
    site = begun(long, tmp_path)
    module = {
        "write_probation": "trainer.learning.trial",
        "approve": "trainer.promotion.directory.ModelsWriter",
        "write_round": "trainer.promotion.directory",
    }[point]
    where, _, owner = module.rpartition(".") if point == "approve" else (module, "", "")
    program = (
        f"import importlib, os, signal; module = importlib.import_module('{where}')\n"
        f"place = module{'.' + owner if owner else ''}\n"
        f"place.{point} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from agent.commands.main import app; app()"
    )
    child = subprocess.run([sys.executable, "-c", program, *words(site, HOURS + 0.1)], capture_output=True, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert os.path.lexists(site.directory.path / "champion.json")
    left = site.directory.champion(SUBJECT)
    assert left is not None
    assert left.model == (site.thrifty.name if point == "write_round" else site.lavish.name)
    if point != "write_round":
        assert CliRunner().invoke(app, words(site, HOURS + 0.1)).exit_code == 0
        assert ended(site) == ("promoted", site.thrifty.name)
    assert len([event for event, _ in site.events() if event == "promoted"]) == 2


def test_a_person_may_approve_before_the_hours_are_over_and_sees_what_differs_so_far(site: Site) -> None:
    site.promoted(site.thrifty, 0.0)
    site.tried(site.lavish, 1.0)
    site.live([(site.thrifty, 0.3)], shadow=site.lavish)
    place = ["--ledger", str(site.ledger), "--models-dir", str(site.directory.path)]
    shown = CliRunner().invoke(app, ["approve", "autoscaling", FLEET, "--reason", "the sale begins", *place])
    assert shown.exit_code == 0, shown.output
    assert "so far it differs in" in shown.output
    assert site.lavish.name in shown.output
    assert site.events()[-1] == ("promoted", "the sale begins")
    again = CliRunner().invoke(app, ["approve", "autoscaling", FLEET, *place])
    assert (again.exit_code, "no model is on probation" in again.output) == (2, True)


def test_a_person_may_end_it_and_the_models_are_shown_with_their_history(site: Site) -> None:
    site.promoted(site.thrifty, 0.0)
    site.tried(site.lavish, 1.0)
    place = ["--models", str(site.directory.path)]
    shown = CliRunner().invoke(app, ["models", "autoscaling", *place])
    assert shown.exit_code == 0, shown.output
    assert "on probation" in shown.output
    assert "2026-11-20T22:10:00Z" in shown.output
    listed = json.loads(CliRunner().invoke(app, ["models", "autoscaling", "--json", *place]).output)
    (row,) = listed["probation"]
    assert (row["subject"], row["model"], row["against"]) == (FLEET, site.lavish.name, site.thrifty.name)
    assert (row["then"], row["refused"]) == ("promote", "")
    ended_now = CliRunner().invoke(
        app, ["approve", "autoscaling", FLEET, "--end", "we keep the rule", "--models-dir", place[1]]
    )
    assert ended_now.exit_code == 0, ended_now.output
    assert site.events()[-1] == ("probation ended", "we keep the rule")
    assert site.directory.probationers() == {}


def test_a_report_of_a_probation_without_windows_can_be_written(hour: Site, tmp_path: Path) -> None:
    found = examine(hour.look(1.1), hour.directory.probationers()[SUBJECT])
    page = write_probation(tmp_path, SUBJECT, found).read_text()
    assert "jobs wait" in page
    assert "8 are needed" in page
    assert name_of(hour.lavish).partition(":")[2] in page
