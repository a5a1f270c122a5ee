"""The picture of how a learned oversubscription policy got better."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.oversubscription.report import curve_of, learning

HEAD = "update,steps,best_cost,hot_hours,s_cores,held_out/reserved,held_out/c_hot_r\n"


def run_in(folder: Path, reserved: float) -> Path:
    """Write the curve of a run that was judged twice, and played without being judged in between."""
    folder.mkdir()
    rows = f"8,960,,9,0.2,{reserved},0.9\n16,1920,,5,0.3,,\n24,2880,0.5,1,0.4,{reserved - 0.1},0.04\n"
    (folder / "curve.csv").write_text(HEAD + rows)
    return folder


@pytest.mark.exhaustive
def test_the_same_curves_give_the_same_picture_and_other_ones_another(tmp_path: Path) -> None:
    first, second = run_in(tmp_path / "first", 0.6), run_in(tmp_path / "second", 0.8)
    drawn = learning({"mine": [first]})
    assert drawn == learning({"mine": [first]})
    assert len({drawn, learning({"mine": [second]}), learning({"mine": [first, second]})}) == 3
    assert "mine" in drawn


def test_a_run_that_was_never_judged_has_its_training_figures_alone(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text(HEAD + "8,960,,9,0.2,,\n16,1920,,5,0.3,,\n")
    assert "of a training week" in learning({"mine": [tmp_path]})


def test_curves_of_both_methods_count_the_weeks_that_were_played(tmp_path: Path) -> None:
    figures = ("held_out/reserved", "saved")
    assert curve_of(run_in(tmp_path / "networks", 0.6), figures) == [(8.0, 0.4), (24.0, 0.5)]
    folder = tmp_path / "search"
    folder.mkdir()
    (folder / "curve.csv").write_text("update,steps,score/best,saved\n1,1,0.3,0.5\n2,2,0.4,0.55\n")
    (folder / "run.json").write_text('{"config": {"population": 18, "drawn": 10}}')
    assert curve_of(folder, figures) == [(180.0, 0.5), (360.0, 0.55)]
