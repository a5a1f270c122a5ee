"""Learning curves of several seeds: means, best so far, interval, and a picture that does not change by itself."""

from pathlib import Path

import pytest

from domain.errors import BadInput
from trainer.autoscaling.ppo_runs import best_so_far, curve_of, draw_curves, mean_curve, spread, summary_of
from trainer.kit.intervals import Interval
from trainer.kit.progress import CURVE_FILE, Curve, Progress


def test_the_best_so_far_never_rises() -> None:
    assert best_so_far([(1, 5.0), (2, 7.0), (3, 4.0)]) == [(1, 5.0), (2, 5.0), (3, 4.0)]


def test_the_mean_holds_each_curve_until_its_next_point_and_begins_where_all_have() -> None:
    assert mean_curve([[(1, 4.0), (3, 2.0)], [(2, 8.0), (4, 6.0)]]) == [(2, 6.0), (3, 5.0), (4, 4.0)]


def test_a_summary_tells_which_goals_the_mean_and_its_interval_pass() -> None:
    costs = {"seed-0": 20.0, "seed-1": 21.0, "seed-2": 22.0}
    found = summary_of(costs, {"threshold": 27.0, "queue rule": 21.5, "plan": 19.5})
    assert found["costs"] == costs
    assert found["mean"] == 21.0
    assert 20.0 <= found["low"] < 21.0 < found["high"] <= 22.0
    assert [(name, goal["passed"], goal["surely"]) for name, goal in found["goals"].items()] == [
        ("threshold", True, True),
        ("queue rule", True, False),
        ("plan", False, False),
    ]
    assert found["goals"]["threshold"]["relative"] == pytest.approx(21.0 / 27.0 - 1.0)


def test_the_picture_of_the_same_curves_is_the_same_file_and_names_the_baselines(tmp_path: Path) -> None:
    curves = {"seed-0": [(1_000_000, 30.0), (2_000_000, 21.0)], "seed-1": [(1_000_000, 25.0), (2_000_000, 20.0)]}
    for name in ("one.svg", "two.svg"):
        draw_curves(curves, {"queue rule": 20.68, "threshold": 26.96}, tmp_path / name, title="train-text")
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    for words in ("queue rule 20.68", "threshold 26.96", "train-text: 2 seeds"):
        assert words in text


def test_labels_that_would_overlap_are_moved_apart_in_their_order() -> None:
    assert spread({"a": 6.0, "b": 5.0, "c": 6.5, "d": 9.0}, 1.0) == {"b": 5.0, "a": 6.0, "c": 7.0, "d": 9.0}


def test_a_picture_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give at least one run"):
        draw_curves({}, {}, tmp_path / "none.svg", title="train-text")


def test_a_curve_without_the_figure_is_refused_by_name(tmp_path: Path) -> None:
    Curve(tmp_path)(Progress(1, 100, 1000, 1.0, 1.0, {"loss/policy": 0.5}))
    assert curve_of(tmp_path / CURVE_FILE, "loss/policy") == [(100, 0.5)]
    with pytest.raises(BadInput, match="no held_out/greedy"):
        curve_of(tmp_path / CURVE_FILE, "held_out/greedy")


def test_a_single_run_is_summed_up_over_its_episodes() -> None:
    found = summary_of({"seed 0": 20.0}, {"queue rule": 20.5}, Interval(20.0, 19.0, 21.0, 30))
    assert (found["mean"], found["low"], found["high"], found["interval_over"]) == (20.0, 19.0, 21.0, "episodes")
    assert (found["goals"]["queue rule"]["passed"], found["goals"]["queue rule"]["surely"]) == (True, False)
