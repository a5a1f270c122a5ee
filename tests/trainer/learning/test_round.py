"""A round of learning: every stage once, in order, whatever stops it, and nothing in use that the gate refused."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.models.directory import AUTOSCALING, Subject, sealed
from domain.errors import BadInput
from simulator.autoscaling.reference.world_file import World, write_world
from tests.trainer.learning.recording import FLEET, WORLD, batches, made, recorded_in
from tests.trainer.learning.rounds import AT, recorded_hours, round_of
from trainer.kit import files
from trainer.learning.minutes import Recorded
from trainer.learning.report import DATA_FILE, PAGE_FILE, RULE_FILE
from trainer.learning.round import BudgetUsed
from trainer.learning.state import STATE_FILE, kept_record, locked, packed, unpacked

STAGES = ["fidelity", "rule", "lessons", "scorer", "judge", "report", "gate"]


@pytest.fixture(scope="module")
def ten_hours() -> Recorded:
    """Enough to tune the rule on, too little for a scorer."""
    return recorded_hours(10.0)


@pytest.fixture(scope="module")
def finished(ten_hours: Recorded, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("finished")
    return folder, dict(round_of(folder, ten_hours).go_on())


def test_a_round_does_every_stage_and_says_what_is_missing_for_a_scorer(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, stages = finished
    assert list(stages) == STAGES
    assert stages["fidelity"]["holds"]
    assert stages["scorer"] == {"model": None, "why": "2 more earlier windows are needed to learn and choose on"}
    assert stages["gate"]["promoted"] is False
    assert not (folder / "models").exists()


def test_the_rule_is_judged_on_held_out_windows_alone_and_written_as_settings(
    finished: tuple[Path, dict[str, Any]], ten_hours: Recorded
) -> None:
    folder, stages = finished
    work = round_of(folder, ten_hours)
    assert stages["judge"]["windows"] == [span.name for span in work.windows.held_out]
    lines = (folder / "round" / RULE_FILE).read_text("utf-8").splitlines()
    setting = stages["rule"]["setting"]
    assert f"TRIMTAB_FLEETS__web__QUEUE_RULE__HORIZON_S={setting['horizon_s']:g}" in lines
    assert f"TRIMTAB_FLEETS__web__IDLE_S={setting['idle_s']:g}" in lines
    page = (folder / "round" / PAGE_FILE).read_text("utf-8")
    assert "Cost on the held-out windows" in page
    assert stages["judge"]["windows"][0] in page
    assert json.loads((folder / "round" / DATA_FILE).read_text("utf-8"))["judge"] == stages["judge"]


def test_the_rule_that_is_chosen_costs_least_under_the_fleets_own_limits(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    tried = finished[1]["rule"]["tried"]
    best = min(tried, key=lambda one: float(one["cost"]))
    assert {name: best[name] for name in ("horizon_s", "idle_s", "job_core_s")} == finished[1]["rule"]["setting"]


def test_a_finished_round_is_not_done_again(finished: tuple[Path, dict[str, Any]], ten_hours: Recorded) -> None:
    work = round_of(finished[0], ten_hours)
    begun: list[str] = []
    work.tell = begun.append
    assert list(work.go_on()) == STAGES
    assert begun == []


@pytest.mark.parametrize("after", [4, 6])
def test_a_disk_that_is_full_leaves_a_state_that_goes_on_to_the_same_end(
    after: int,
    finished: tuple[Path, dict[str, Any]],
    ten_hours: Recorded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    _start_from(finished[0], tmp_path, STAGES[:after])
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_synced", full)
        with pytest.raises(OSError, match="No space left"):
            round_of(tmp_path, ten_hours).go_on()
    assert sorted(path.name for path in (tmp_path / "round").iterdir()) == [STATE_FILE]
    work = round_of(tmp_path, ten_hours)
    assert sorted(work.state.stages) == sorted(STAGES[:after])
    assert dict(work.go_on()) == finished[1]


def _start_from(done: Path, folder: Path, stages: list[str]) -> None:
    """Put the state of a round into a folder as it was after some stages."""
    (folder / "round").mkdir()
    data = json.loads((done / "round" / STATE_FILE).read_text("utf-8"))
    body = {**data, "stages": {name: data["stages"][name] for name in stages}}
    (folder / "round" / STATE_FILE).write_text(json.dumps(sealed(body, None)), "utf-8")


def test_a_state_that_was_changed_by_hand_is_refused(
    finished: tuple[Path, dict[str, Any]], ten_hours: Recorded, tmp_path: Path
) -> None:
    _start_from(finished[0], tmp_path, STAGES)
    path = tmp_path / "round" / STATE_FILE
    data = json.loads(path.read_text("utf-8"))
    data["stages"]["gate"]["promoted"] = True
    path.write_text(json.dumps(data), "utf-8")
    with pytest.raises(BadInput, match="its seal does not hold"):
        round_of(tmp_path, ten_hours)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadInput, match="it is damaged"):
        round_of(tmp_path, ten_hours)


def test_the_round_of_another_world_is_refused(
    finished: tuple[Path, dict[str, Any]], ten_hours: Recorded, tmp_path: Path
) -> None:
    _start_from(finished[0], tmp_path, STAGES)
    write_world(World(WORLD.boots_scaled(1.1), "other"), tmp_path / "other.toml")
    with pytest.raises(BadInput, match="it is of a round with world="):
        round_of(tmp_path, ten_hours, world=str(tmp_path / "other.toml"))


def test_a_used_up_budget_stops_in_order_and_more_of_it_goes_on(
    finished: tuple[Path, dict[str, Any]], ten_hours: Recorded, tmp_path: Path
) -> None:
    _start_from(finished[0], tmp_path, STAGES[:4])
    spent = round_of(tmp_path, ten_hours).state.cpu_s
    with pytest.raises(BudgetUsed, match="--cpu-minutes"):
        round_of(tmp_path, ten_hours, cpu_s=spent + 0.01).go_on()
    again = round_of(tmp_path, ten_hours)
    assert again.state.cpu_s > spent
    assert again.go_on()["judge"] == finished[1]["judge"]


def test_a_simulator_that_lies_ends_the_round_before_anything_is_learnt(ten_hours: Recorded, tmp_path: Path) -> None:
    write_world(World(WORLD.boots_scaled(3.0), "lie"), tmp_path / "lie.toml")
    work = round_of(tmp_path, ten_hours, world=str(tmp_path / "lie.toml"))
    replayed = work.windows.replayed
    work.windows = replace(work.windows, stretches=replayed[:2], replayed=replayed[:1])
    stages = work.go_on()
    assert list(stages) == ["fidelity"]
    assert stages["fidelity"]["named"] == "boots"


def test_who_comes_second_is_told_who_learns_and_since_when(tmp_path: Path) -> None:
    with (
        locked(tmp_path, FLEET, AT),
        pytest.raises(BadInput, match=rf"process {os.getpid()} on .*, since {AT}, learns for it"),
        locked(tmp_path, FLEET, AT),
    ):
        pass
    with locked(tmp_path, FLEET, AT), locked(tmp_path, "other", AT):
        pass


def test_a_record_is_kept_with_the_round_and_read_back_as_it_was(ten_hours: Recorded, tmp_path: Path) -> None:
    assert kept_record(tmp_path, lambda: ten_hours) == ten_hours
    assert kept_record(tmp_path, lambda: pytest.fail("the ledger is not asked again")) == ten_hours
    assert packed(unpacked(packed(ten_hours), "")) == packed(ten_hours)
    with pytest.raises(BadInput, match="cut or no record"):
        unpacked(packed(ten_hours)[:-20], "file")


@pytest.mark.exhaustive
def test_a_scorer_is_trained_judged_and_handed_to_the_gate(tmp_path: Path) -> None:
    recorded = recorded_hours(15.0)
    work = round_of(tmp_path, recorded)
    stages = work.go_on()
    assert stages["lessons"]["rounds"] == [2, 2]
    assert set(stages["judge"]["means"]) == {"decides now", "tuned rule", "scorer"}
    champion = work.directory.champions().get(Subject(AUTOSCALING, FLEET))
    assert (champion is not None) == stages["gate"]["promoted"]
    assert stages["gate"]["promoted"] or stages["gate"]["reasons"]


@pytest.mark.exhaustive
def test_a_round_that_was_killed_goes_on_to_the_same_end(tmp_path: Path) -> None:
    path = recorded_in(tmp_path / "ledger.db", made(10.0, trace=batches(10.0, jobs=25)))

    def words(name: str) -> list[str]:
        places = ["--out", str(tmp_path / name), "--models-dir", str(tmp_path / f"{name}-models")]
        return ["learn", "autoscaling", FLEET, "--ledger", str(path), *places]

    program = "from agent.commands.main import app; app()"
    with subprocess.Popen([sys.executable, "-c", program, *words("killed")], stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        # It says which stage begins.
        while b"judge" not in (line := child.stderr.readline()):
            assert line, "it ended before"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    again = CliRunner().invoke(app, [*words("killed"), "--json"])
    alone = CliRunner().invoke(app, [*words("alone"), "--json"])
    assert (again.exit_code, alone.exit_code) == (0, 0), again.output

    def results(text: str) -> dict[str, Any]:
        data = json.loads(text[text.index("{") :])
        return {name: data[name] for name in STAGES}

    assert results(again.stdout) == results(alone.stdout)


@pytest.mark.exhaustive
def test_a_round_from_an_export_ends_as_the_one_from_the_ledger(tmp_path: Path) -> None:
    path = recorded_in(tmp_path / "ledger.db", made(10.0, trace=batches(10.0, jobs=25)))
    models = ["--models-dir", str(tmp_path / "models")]
    verb = ["learn", "autoscaling", FLEET]
    tar = str(tmp_path / "web.tar")
    assert CliRunner().invoke(app, [*verb, "--ledger", str(path), *models, "--export", tar]).exit_code == 0
    here = CliRunner().invoke(app, [*verb, "--ledger", str(path), *models, "--out", str(tmp_path / "here"), "--json"])
    there = CliRunner().invoke(app, [*verb, "--from", tar, "--out", str(tmp_path / "there"), "--json"])
    assert (here.exit_code, there.exit_code) == (0, 0), there.output
    results = [json.loads(shown.stdout[shown.stdout.index("{") :]) for shown in (here, there)]
    assert all(results[0][stage] == results[1][stage] for stage in STAGES)
