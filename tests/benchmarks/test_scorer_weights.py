"""Whether other weights of the scorer may ship: better on fresh cases for sure, and no group dearer than the rule."""

import numpy as np

from benchmarks.scorer_weights import FIRST, FIRST_FLEET, compared, fresh_cases
from simulator.autoscaling.reference import preset
from trainer.autoscaling.scorer import FLEETS, Recipe, Selection

GROUPS = ["random"] * 50 + ["fleets"] * 50


def costs(random: float, fleets: float, noise: float = 0.001) -> np.ndarray:
    rng = np.random.default_rng(1)
    shipped = 0.95 + 0.05 * rng.standard_normal(100)
    means = np.repeat([random, fleets], 50)
    return np.stack([shipped, shipped + means - 0.95 + noise * rng.standard_normal(100)], axis=1)


def test_weights_that_cost_less_for_sure_may_ship() -> None:
    assert compared(costs(0.94, 0.945), GROUPS)[0]["may_ship"] == 1.0


def test_weights_whose_gain_may_be_luck_may_not() -> None:
    assert compared(costs(0.949, 0.949, noise=0.1), GROUPS)[0]["may_ship"] == 0.0


def test_weights_that_cost_more_than_the_rule_on_one_group_may_not() -> None:
    figures, notes = compared(costs(1.006 + 0.01, 0.8), GROUPS)
    assert figures["difference_high"] < 0.0
    assert figures["worst_other"] > 1.005
    assert figures["may_ship"] == 0.0
    assert set(notes["groups"]) == {"random", "fleets"}


def test_no_margin_was_chosen_on_a_case_that_is_judged_on() -> None:
    chosen_on = set(Selection(preset("live-like"), Recipe().selection).cases)
    assert not chosen_on & set(fresh_cases(1.0))
    assert (FLEETS, FIRST_FLEET) in fresh_cases(1.0)
    assert ("burst", FIRST) in fresh_cases(1.0)
