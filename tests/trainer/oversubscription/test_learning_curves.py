"""The picture of how a learned oversubscription policy got better."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.errors import BadInput
from trainer.oversubscription.learning_curves import draw_learning, learning_curve

HEAD = "update,steps,best_cost,loss,held_out/reserved,held_out/c_hot_r_assessed\n"


def test_a_curve_has_a_point_for_every_time_the_policy_was_judged(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text(
        HEAD + "8,960,,1,0.75,0.9\n16,1920,,1,,\n24,2880,0.5,1,0.5,0.04\n32,3840,0.5,1,0.25,0.3\n"
    )
    curve = learning_curve(tmp_path)
    assert curve["episode"] == [8.0, 24.0, 32.0]
    assert curve["saved"] == [0.25, 0.5, 0.75]
    assert curve["risk"] == [0.9, 0.04, 0.3]
    assert curve["kept"][1:] == [0.5, 0.5]
    assert curve["kept"][0] != curve["kept"][0]


def test_the_same_curves_give_the_same_picture(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text(HEAD + "8,960,0.6,1,0.6,0.0\n16,1920,0.5,1,0.5,0.04\n")
    curve = learning_curve(tmp_path)
    first, again, other = (tmp_path / f"{name}.svg" for name in ("first", "again", "other"))
    draw_learning({"seed 0": curve}, 0.05, first, title="mine")
    draw_learning({"seed 0": curve}, 0.05, again, title="mine")
    draw_learning({"seed 0": curve, "seed 1": curve}, 0.05, other, title="mine")
    assert first.read_bytes() == again.read_bytes()
    assert "mine, one seed" in first.read_text()
    assert "mine, 2 seeds" in other.read_text()


def test_a_run_that_was_never_judged_and_a_folder_without_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="training wrote"):
        learning_curve(tmp_path)
    (tmp_path / "curve.csv").write_text(HEAD + "8,960,,1,,\n")
    with pytest.raises(BadInput, match="never judged"):
        learning_curve(tmp_path)
    with pytest.raises(BadInput, match="at least one"):
        draw_learning({}, 0.05, tmp_path / "none.svg", title="none")
