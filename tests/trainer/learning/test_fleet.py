"""A round of learning: every stage once, in order, whatever stops it, and nothing in use that the gate refused."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.models.directory import moment_s, moment_text
from domain.errors import BadInput
from domain.rules.queue_rule import RuleSetting
from domain.subject import AUTOSCALING, Subject
from domain.units import DAY_S
from simulator.autoscaling.world_file import World, write_world
from tests.golden import figures
from tests.trainer.commands.test_learn_all import described
from tests.trainer.learning.recording import FLEET, WORLD, batches, made, recorded_in
from tests.trainer.learning.rounds import AT, recorded_hours, round_of
from trainer.autoscaling.scorer_runs import shipped_scorer
from trainer.kit import files
from trainer.kit.intervals import FEWEST_CASES, compare
from trainer.learning import fleet
from trainer.learning.fleet import RULE, RULE_FILE, FleetRound, HeldOutResult, advice_of
from trainer.learning.minutes import Record
from trainer.learning.recent import FAMILY
from trainer.learning.round import BudgetUsed
from trainer.learning.state import (
    DATA_FILE,
    PAGE_FILE,
    STATE_FILE,
    State,
    kept_record,
    locked,
    packed,
    set_aside,
    unpacked,
)
from trainer.learning.subject import can_tune_itself
from trainer.promotion.alpha import LEAST, MOST, PER_DAY
from trainer.promotion.directory import ModelsWriter, sealed
from trainer.promotion.gate import Trial, Verdict, judge

STAGES = ["fidelity", "rule", "lessons", "scorer", "choose", "judge", "report", "gate"]


@pytest.fixture(scope="module")
def ten_hours() -> Record:
    """Enough to tune the rule on, too little for a scorer."""
    return recorded_hours(10.0)


@pytest.fixture(scope="module")
def finished(ten_hours: Record, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("finished")
    return folder, dict(round_of(folder, ten_hours).go_on())


def test_a_round_does_every_stage_and_says_what_is_missing_for_a_scorer(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, stages = finished
    assert list(stages) == STAGES
    assert stages["fidelity"]["holds"]
    assert stages["scorer"]["model"] is None
    assert "2 more earlier windows" in stages["scorer"]["why"]
    assert stages["gate"]["promoted"] is False
    assert not (folder / "models").exists()


def test_the_rule_is_judged_on_held_out_windows_alone_and_written_as_settings(
    finished: tuple[Path, dict[str, Any]], ten_hours: Record
) -> None:
    folder, stages = finished
    work = round_of(folder, ten_hours)
    assert stages["judge"]["windows"] == [span.name for span in work.windows.held_out]
    lines = (folder / "round" / RULE_FILE).read_text("utf-8").splitlines()
    setting = stages["rule"]["setting"]
    assert f"TRIMTAB_FLEETS__web__QUEUE_RULE__HORIZON_S={setting['horizon_s']:g}" in lines
    assert f"TRIMTAB_FLEETS__web__IDLE_S={setting['idle_s']:g}" in lines
    page = (folder / "round" / PAGE_FILE).read_text("utf-8")
    assert "on the held-out windows" in page
    assert stages["judge"]["windows"][0] in page
    assert json.loads((folder / "round" / DATA_FILE).read_text("utf-8"))["judge"] == stages["judge"]


def test_a_tuned_rule_is_advised_where_it_is_surely_cheaper_by_three_percent(tmp_path: Path) -> None:
    now = [1.0 + 0.01 * k for k in range(10)]

    def advice(factor: float, count: int = 10, *, can: bool = True) -> str:
        gain = compare([factor * cost for cost in now[:count]], now[:count])
        return advice_of(gain, 3600.0, tmp_path / RULE_FILE, can_tune_itself=can)

    assert "$75.24 a month" in advice(0.9)
    assert "10.0%" in advice(0.9)
    assert ["SELF_TUNE" in advice(0.9, can=can) for can in (True, False)] == [True, False]
    assert advice(0.98) == ""
    assert advice(1.1) == ""
    assert advice(0.9, FEWEST_CASES - 1) == ""


def test_a_rule_that_is_dearer_is_not_written_as_settings(
    finished: tuple[Path, dict[str, Any]], ten_hours: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = round_of(finished[0], ten_hours)
    judged = work.state.result(HeldOutResult)
    assert list(work.files()) == [RULE_FILE]
    dearer = compare([1.1] * 8, [1.0] * 8)
    other = replace(judged, against_now={**judged.against_now, RULE: dearer})
    monkeypatch.setattr(type(work.state), "result", lambda self, kind: other)
    assert dict(work.files()) == {}


def test_the_rule_that_is_chosen_costs_least_under_the_fleets_own_limits(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    tried = finished[1]["rule"]["tried"]
    best = min(tried, key=lambda one: float(one["cost"]))
    assert {name: best[name] for name in ("horizon_s", "idle_s", "job_core_s")} == finished[1]["rule"]["setting"]


@pytest.mark.parametrize("after", [4, 7])
def test_a_disk_that_is_full_leaves_a_state_that_goes_on_to_the_same_end(
    after: int,
    finished: tuple[Path, dict[str, Any]],
    ten_hours: Record,
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
    (folder / "round").mkdir(parents=True)
    data = json.loads((done / "round" / STATE_FILE).read_text("utf-8"))
    body = {**data, "stages": {name: data["stages"][name] for name in stages}}
    (folder / "round" / STATE_FILE).write_text(json.dumps(sealed(body, None)), "utf-8")


def test_a_state_that_was_changed_by_hand_is_refused(
    finished: tuple[Path, dict[str, Any]], ten_hours: Record, tmp_path: Path
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
    finished: tuple[Path, dict[str, Any]], ten_hours: Record, tmp_path: Path
) -> None:
    _start_from(finished[0], tmp_path, STAGES)
    write_world(World(WORLD.boots_scaled(1.1), "other"), tmp_path / "other.toml")
    with pytest.raises(BadInput, match="a round with world="):
        round_of(tmp_path, ten_hours, world=str(tmp_path / "other.toml"))


def test_a_used_up_budget_stops_in_order_and_more_of_it_goes_on(
    finished: tuple[Path, dict[str, Any]], ten_hours: Record, tmp_path: Path
) -> None:
    _start_from(finished[0], tmp_path, STAGES[:4])
    spent = round_of(tmp_path, ten_hours).state.cpu_s
    with pytest.raises(BudgetUsed, match="--cpu-minutes"):
        round_of(tmp_path, ten_hours, cpu_s=spent + 0.01).go_on()
    again = round_of(tmp_path, ten_hours)
    assert again.state.cpu_s > spent
    assert again.go_on()["judge"] == finished[1]["judge"]


def test_a_simulator_that_lies_ends_the_round_before_anything_is_learnt(ten_hours: Record, tmp_path: Path) -> None:
    write_world(World(WORLD.boots_scaled(3.0), "lie"), tmp_path / "lie.toml")
    work = round_of(tmp_path, ten_hours, world=str(tmp_path / "lie.toml"))
    replayed = work.windows.replayed
    work.windows = replace(work.windows, stretches=replayed[:2], replayed=replayed[:1])
    stages = work.go_on()
    assert list(stages) == ["fidelity"]
    assert stages["fidelity"]["named"] == "boots"


def test_a_round_that_is_over_makes_room_for_the_next_and_one_is_kept(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, before = tmp_path / "round", tmp_path / "round-before"
    assert set_aside(folder) is None
    for _ in range(2):
        _start_from(finished[0], tmp_path, STAGES)
        assert set_aside(folder) == before
        assert (before / STATE_FILE).is_file()
        assert not folder.exists()
    _start_from(finished[0], tmp_path, STAGES[:-1])
    assert set_aside(folder) is None
    assert (folder / STATE_FILE).is_file()


def test_a_second_process_learns_which_one_holds_the_lock_and_since_when(tmp_path: Path) -> None:
    with (
        locked(tmp_path, FLEET, AT),
        pytest.raises(BadInput, match=rf"process {os.getpid()} on .*, since {AT}, learns for it"),
        locked(tmp_path, FLEET, AT),
    ):
        pass
    with locked(tmp_path, FLEET, AT), locked(tmp_path, "other", AT):
        pass


def test_a_record_is_kept_with_the_round_and_read_back_as_it_was(ten_hours: Record, tmp_path: Path) -> None:
    assert kept_record(tmp_path, lambda: ten_hours) == ten_hours
    assert kept_record(tmp_path, lambda: pytest.fail("the ledger is not asked again")) == ten_hours
    assert packed(unpacked(packed(ten_hours), "")) == packed(ten_hours)
    with pytest.raises(BadInput, match="cut or no record"):
        unpacked(packed(ten_hours)[:-20], "file")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    """A round with a scorer, with everything done but the gate."""
    folder, recorded = tmp_path_factory.mktemp("trained"), recorded_hours(15.0)
    work = round_of(folder, recorded)
    work.go_on()
    _start_from(folder, folder / "before", STAGES[:-1])
    shutil.copytree(work.place, folder / "before" / "round" / "scorer")
    return folder / "before", recorded


def _at_the_gate(trained: tuple[Path, Record], folder: Path, **changed: Any) -> FleetRound:
    """The round in a folder of its own, with a scorer that is the cheapest under the fleet's limits."""
    shutil.copytree(trained[0], folder, dirs_exist_ok=True)
    work = round_of(folder, trained[1], **changed)
    means = work.state.stages["choose"]["means"]
    means["scorer"] = [0.5 * cost for cost in means["tuned rule"]]
    means["decides now"] = means["tuned rule"]
    return work


@pytest.mark.exhaustive
def test_a_scorer_is_trained_and_judged_beside_rule_and_present_policy(trained: tuple[Path, Record]) -> None:
    stages = round_of(*trained).state.stages
    assert stages["lessons"]["rounds"] == [2, 2]
    assert set(stages["judge"]["means"]) == {"decides now", "tuned rule", "scorer"}


@pytest.mark.exhaustive
def test_a_scorer_that_costs_more_than_the_tuned_rule_is_not_handed_to_the_gate(
    trained: tuple[Path, Record], tmp_path: Path
) -> None:
    work = _at_the_gate(trained, tmp_path)
    means = work.state.stages["choose"]["means"]
    means["scorer"] = [1.01 * cost for cost in means["tuned rule"]]
    judged = work.state.stages["judge"]["means"]
    judged["scorer"] = [0.5 * cost for cost in judged["tuned rule"]]
    judged["decides now"] = judged["tuned rule"]
    gate = work.go_on()["gate"]
    assert (gate["passed"], gate["promoted"]) == (None, False)
    assert "does not cost less than" in gate["reasons"][0]
    assert not work.directory.path.exists()


@pytest.mark.exhaustive
def test_the_shipped_scorer_comes_back_where_it_costs_less_than_the_one_that_was_fine_tuned(
    trained: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FleetRound, "policy_now", f"learned:{'0' * 64}")
    work = _at_the_gate(trained, tmp_path)
    work.state.stages["scorer"]["used"] = False
    means = work.state.stages["choose"]["means"]
    handed: list[Path] = []

    def hold(model: Path, *_: Any, **__: Any) -> None:
        handed.append(model)
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.learning.round.hold", hold)
    means["shipped scorer"] = [0.9 * cost for cost in means["tuned rule"]]
    with pytest.raises(KeyboardInterrupt):
        work.go_on()
    assert handed == [shipped_scorer()]
    means["shipped scorer"] = [1.1 * cost for cost in means["tuned rule"]]
    (reason,) = work.go_on()["gate"]["reasons"]
    assert "not surely better" in reason


@pytest.mark.exhaustive
def test_what_passes_is_promoted_once_though_the_round_is_stopped_right_after(
    trained: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = _at_the_gate(trained, tmp_path)
    _cheap(monkeypatch)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(State, "done", stopped)
        with pytest.raises(KeyboardInterrupt):
            work.go_on()
    champion = work.directory.champions()[Subject(AUTOSCALING, FLEET)]
    again = _at_the_gate(trained, tmp_path)
    gate = again.go_on()["gate"]
    assert (gate["promoted"], gate["report"]) == (True, champion.report)
    assert len(again.directory.history()) == 1


@pytest.mark.exhaustive
def test_what_passes_is_on_probation_once_where_hours_are_asked_for(
    trained: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = _at_the_gate(trained, tmp_path, probation_hours=48.0)
    _cheap(monkeypatch)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(State, "done", stopped)
        with pytest.raises(KeyboardInterrupt):
            work.go_on()
    (one,) = work.directory.probationers().values()
    assert (one.hours, one.against, one.since) == (48.0, None, moment_s(AT))
    assert work.directory.champions() == {}
    again = _at_the_gate(trained, tmp_path, probation_hours=48.0)
    gate = again.go_on()["gate"]
    assert (gate["promoted"], gate["on_probation"], gate["report"]) == (False, True, one.report)
    assert [line["event"] for line in again.directory.history()] == ["on probation"]


@pytest.mark.exhaustive
def test_a_champions_report_that_was_tampered_with_stops_the_gate(
    trained: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = _at_the_gate(trained, tmp_path)
    _cheap(monkeypatch)
    report = work.directory.path / str(work.go_on()["gate"]["report"])
    data = json.loads(report.read_text("utf-8"))
    data["overall"]["relative"]["mean"] = -0.9
    report.write_text(json.dumps(data), "utf-8")
    with pytest.raises(BadInput, match="its seal does not hold"):
        _at_the_gate(trained, tmp_path).go_on()


@pytest.mark.exhaustive
def test_a_trial_changes_nothing(trained: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = _at_the_gate(trained, tmp_path, try_only=True)
    _cheap(monkeypatch)
    gate = work.go_on()["gate"]
    assert (gate["passed"], gate["promoted"]) == (True, False)
    assert work.directory.champions() == {}


@pytest.mark.exhaustive
def test_the_gate_judges_what_both_cost_on_the_held_out_windows_under_the_fleets_own_limits(
    trained: tuple[Path, Record], tmp_path: Path
) -> None:
    work = _at_the_gate(trained, tmp_path, try_only=True)
    stages = work.go_on()
    report = work.directory.report(str(stages["gate"]["report"]))
    runs = report["results"]["trials"]
    assert [run["case_key"] for run in runs] == [span.name for span in work.windows.held_out]
    for side, name in (("champion_cost", "tuned rule"), ("challenger_cost", "scorer")):
        assert [run[side] for run in runs] == [one for (one,) in stages["judge"]["costs"][name]]
    assert report["limits"]["probability"] == 1.0 - MOST
    assert report["test"]["alpha"] == MOST


@pytest.mark.exhaustive
def test_a_refused_test_spends_its_alpha_and_the_next_round_waits_until_enough_has_accrued(
    trained: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cheap(monkeypatch, dearer=True)
    first = _at_the_gate(trained, tmp_path / "a")
    gate = first.go_on()["gate"]
    assert gate["passed"] is False
    days = round(LEAST / PER_DAY)
    assert moment_text(moment_s(AT) + days * DAY_S) in gate["reasons"][-1]

    def again(name: str, day: int) -> dict[str, Any]:
        """Another night: with windows that begin later, and the models directory of the first."""
        work = _at_the_gate(trained, tmp_path / name)
        shutil.copytree(first.directory.path, work.directory.path, dirs_exist_ok=True)
        work.at = moment_text(moment_s(AT) + day * DAY_S)
        held_out = tuple(replace(span, name=f"{span.name}, {day}") for span in work.windows.held_out)
        work.windows = replace(work.windows, held_out=held_out)
        return dict(work.go_on()["gate"])

    waiting = again("b", 1)
    assert (waiting["passed"], waiting["report"]) == (None, None)
    assert figures(waiting["reasons"][0])[0] == pytest.approx(100 * PER_DAY)
    tested = again("c", days)
    assert tested["passed"] is False


@pytest.mark.exhaustive
def test_a_test_that_is_made_again_after_a_stop_spends_nothing(
    trained: tuple[Path, Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cheap(monkeypatch)

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ModelsWriter, "promote", stopped)
        with pytest.raises(KeyboardInterrupt):
            _at_the_gate(trained, tmp_path).go_on()
    shutil.rmtree(tmp_path / "round")
    gate = _at_the_gate(trained, tmp_path).go_on()["gate"]
    assert gate["promoted"] is True


def _cheap(monkeypatch: pytest.MonkeyPatch, *, dearer: bool = False) -> None:
    """Let the gate see runs that the challenger wins: what is held here is what the round makes of the verdict."""

    def won(*given: Any, **_: Any) -> Any:
        trials = [Trial(f"{k}", FAMILY, f"{k}", 0, 1.0 + 0.01 * k, 1.02 if dearer else 0.8) for k in range(8)]
        return lambda challenger, beaten: Verdict(judge(trials, given[1]), "tuned rule", {})

    monkeypatch.setattr(fleet, "fleet_gate", won)


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


def test_self_tuning_is_advised_only_where_it_has_an_effect() -> None:
    known = described("web")
    assert can_tune_itself("web", known)
    assert not can_tune_itself("web", known | {"TRIMTAB_FLEETS__web__QUEUE_RULE__HORIZON_S": "200"})
    assert not can_tune_itself("web", known | {"TRIMTAB_FLEETS__web__IDLE_S": "200"})
    assert not can_tune_itself("web", {"TRIMTAB_DISCOVERY__ENABLED": "true"})


def test_another_world_idle_time_or_rule_is_another_test() -> None:
    def key(world: str = "live-like", idle_s: float = 120.0, horizon_s: float = 150.0) -> str:
        span = SimpleNamespace(name="0", trace=SimpleNamespace(digest="a trace"))
        learner = SimpleNamespace(config=world, loop=SimpleNamespace(idle_s=idle_s))
        work: Any = SimpleNamespace(windows=SimpleNamespace(held_out=[span]), learner=learner)
        work.setting = RuleSetting(horizon_s)
        return FleetRound._test(work, "challenger", None)

    assert key() == key()
    assert len({key(), key("other"), key(idle_s=60.0), key(horizon_s=300.0)}) == 4
