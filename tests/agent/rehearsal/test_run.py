"""Around the hour: directories in use are left alone, and the command to try next is shown as it is typed."""

import sys
from pathlib import Path

import pytest

from agent.autoscaling.state import DecisionRow
from agent.ledger import Ledger, lock_directory
from agent.rehearsal.run import LOG, fresh_directory, most_informative
from agent.rehearsal.scenario import LEDGER, ORIGIN, shown_path, shown_program
from domain.decisions import Decision, Reason
from domain.errors import BadInput, LedgerUnavailable
from tests.agent.rehearsal.turns import decision, held, moved


def test_an_earlier_runs_ledger_and_log_are_replaced(tmp_path: Path):
    for name in (LEDGER, f"{LEDGER}-wal", LOG, "clock-k1ll3d"):
        (tmp_path / name).write_text("old")
    assert fresh_directory(tmp_path) == tmp_path
    assert not (tmp_path / LEDGER).exists()
    assert not (tmp_path / f"{LEDGER}-wal").exists()
    assert not (tmp_path / "clock-k1ll3d").exists()
    assert (tmp_path / LOG).read_text() == ""


def test_the_next_run_may_write_its_own_ledger(tmp_path: Path):
    for _ in range(2):
        fresh_directory(tmp_path)
        with Ledger.open(f"sqlite:///{tmp_path / LEDGER}", witness_in=tmp_path) as ledger:
            ledger.take_epoch("dry run", ORIGIN)


def test_a_ledger_that_no_dry_run_wrote_is_left_alone(tmp_path: Path):
    (tmp_path / LEDGER).write_text("a real agent's")
    with pytest.raises(BadInput, match="no dry run has written"):
        fresh_directory(tmp_path)
    assert (tmp_path / LEDGER).read_text() == "a real agent's"


def test_a_directory_in_use_is_left_alone_and_its_user_is_named(tmp_path: Path):
    (tmp_path / LOG).write_text("going on")
    (tmp_path / LEDGER).write_text("going on")
    with lock_directory(tmp_path), pytest.raises(LedgerUnavailable, match="is in use by process"):
        fresh_directory(tmp_path)
    assert (tmp_path / LEDGER).read_text() == "going on"


def row(made: Decision) -> DecisionRow:
    return DecisionRow(1, made)


QUIET = decision(1, (1, 0, 0), (1, 0, 0))
GROWN = decision(2, (1, 0, 0), (2, 0, 0))
HELD = decision(
    3, (1, 0, 0), (1, 0, 0), *[held("cooldown", (2, 0, 0), (1, 0, 0), Reason.COOLING_DOWN, "cooling down")] * 3
)
SHRUNK = decision(4, (1, 0, 0), (2, 0, 0), held("step_limit", (9, 0, 0), (2, 0, 0), Reason.STEP_LIMIT, "at most 1"))
FALLBACK = decision(5, (1, 0, 0), (1, 2, 0), moved((1, 0, 1), (1, 2, 0)))


@pytest.mark.parametrize(
    ("made", "best"),
    [
        ([QUIET, GROWN, HELD, SHRUNK, FALLBACK], "web-5"),
        ([QUIET, GROWN, HELD, SHRUNK], "web-4"),
        ([QUIET, GROWN, HELD], "web-3"),
        ([QUIET, GROWN], "web-2"),
        ([], "last"),
    ],
)
def test_the_decision_to_explain_first_is_a_fallback_or_one_that_rails_changed(made: list[Decision], best: str):
    assert most_informative([row(one) for one in made]) == best


def test_a_path_below_the_working_directory_is_shown_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inside = tmp_path / "here"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert shown_path(inside / "kept" / LEDGER) == f"kept/{LEDGER}"
    assert shown_path(tmp_path / LEDGER) == str(tmp_path / LEDGER)


def test_the_program_is_shown_as_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / ".venv" / "bin" / "trimtab"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "")
    assert shown_program() == ".venv/bin/trimtab"
    monkeypatch.setenv("PATH", str(program.parent))
    assert shown_program() == "trimtab"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert shown_program() == "trimtab"
