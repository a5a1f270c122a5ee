"""The forms of a scorer's memory are trained on the minutes that were branched, and play as they were trained."""

import numpy as np
import pytest
import torch

from benchmarks.scorer_forms import (
    CELLS,
    HAND_MADE,
    LEAD,
    NONE,
    RECURRENT,
    STRETCH,
    Judged,
    OtherForm,
    RecurrentScorer,
    compared,
    stretches,
)
from domain.observations.autoscaling_scorer import ANNOUNCED, STATES
from simulator.autoscaling.branching import HAND_MADE as HAND_MADE_FEATURES
from simulator.autoscaling.branching import NO_WEIGHTS, BranchedEpisodes, RuleSetting, remember_in_cells
from simulator.autoscaling.reference import preset
from simulator.workloads.synthetic import train_rand
from trainer.autoscaling.fast_lstm import LstmUnroll
from trainer.autoscaling.scorer import Lessons, Recipe, suite_lessons

LIVE = preset("live-like")


def test_every_branched_minute_is_taught_once_and_in_its_place() -> None:
    rng = np.random.default_rng(1)
    minutes = [50, STRETCH, STRETCH + 1, 500]
    places = [np.sort(rng.choice(length, size=min(length, 120), replace=False)) for length in minutes]
    begun, cut = np.cumsum([0, *minutes[:-1]]), stretches(places, minutes)
    whole = np.concatenate([first + branched for first, branched in zip(begun, places, strict=True)])
    rows = np.concatenate([one.rows for one in cut])
    assert sorted(rows) == list(range(len(whole)))
    for one in cut:
        np.testing.assert_array_equal(one.first + one.places, whole[one.rows])
        assert one.places.max() < STRETCH
        assert one.first in begun or one.places.min() >= LEAD


def test_the_compiled_memory_is_that_of_the_network_that_was_trained() -> None:
    network = RecurrentScorer(16, torch.Generator().manual_seed(1))
    weights = network.weights()
    trace = train_rand(700_100)
    found = BranchedEpisodes(LIVE, trace, RuleSetting()).play(
        3, weights, branch_share=1.0, most=500, steps=1, trail=600
    )
    np.testing.assert_array_equal(found.trail[found.places], found.states)
    unroll, starts, nothing = LstmUnroll(len(found.trail), 1, STATES, CELLS), torch.zeros(len(found.trail), 1), None
    starts[0], nothing = 1.0, torch.zeros(1, CELLS)
    unroll.fill(torch.from_numpy(found.trail.astype(np.float32))[:, None], starts, nothing, nothing)
    memory = unroll.forward(network.gates.detach())[:, 0]
    added = (memory @ network.mixed).detach().numpy()
    *_, gates, mixed = weights
    hidden, kept = np.zeros((1, CELLS), np.float32), np.zeros((1, CELLS), np.float32)
    biased = np.zeros_like(weights[1])
    for minute, state in enumerate(found.trail):
        remember_in_cells(state, gates, mixed, weights[1], hidden, kept, biased)
        np.testing.assert_allclose(hidden[0], memory[minute].numpy(), atol=1e-5)
        np.testing.assert_allclose(biased[0], weights[1][0] + added[minute], atol=1e-5)


def test_a_trail_has_what_came_in_each_minute_and_no_average() -> None:
    trace = train_rand(700_100)
    episodes = BranchedEpisodes(LIVE, trace, RuleSetting())
    found, plain = episodes.play(3, branch_share=1.0, most=500, trail=600), episodes.play(3)
    assert found.cost == plain.cost
    first, after = HAND_MADE_FEATURES
    assert after == STATES - ANNOUNCED
    assert not found.trail[:, first + 2 : after].any()
    jobs = np.expm1(3.0 * found.trail[:, first])
    # Jobs of the last minute of an episode are never seen, and none come then.
    assert jobs.sum() == pytest.approx(trace.jobs)
    short = episodes.play(3, branch_share=1.0, most=500, trail=40)
    assert len(short.trail) == 40
    assert short.places.max() < 40


@pytest.mark.parametrize("form", [RECURRENT, NONE])
def test_a_form_is_trained_and_plays(form: str) -> None:
    recipe = Recipe(rounds=(3,), explore=(0.15,), most=20, hidden=8, networks=2, batch=32)
    workshop = OtherForm(form)
    workshop.gather(Lessons(lambda first, count: suite_lessons(first, count, LIVE), 0, 3), recipe, NO_WEIGHTS, 0.15)
    one, gains = workshop.fit(recipe, [0, 99], None)
    assert all(np.array_equal(a, b) for a, b in zip(one, gains, strict=True))
    episodes = BranchedEpisodes(LIVE, train_rand(700_100), RuleSetting())
    assert episodes.play(1, one).departures > 0
    first, after = HAND_MADE_FEATURES
    deaf = [part.copy() for part in one]
    deaf[0][:, first + 2 : after] = 1e3
    assert episodes.play(1, tuple(deaf)).cost == episodes.play(1, one).cost


def test_the_recurrent_form_ships_where_it_is_better_by_more_than_the_slack() -> None:
    groups = ["a", "a", "b"]

    def trainings(*ratios: float) -> list[Judged]:
        return [Judged(np.array(ratios), 2.0, 1.0, 1.0)]

    def ships(*ratios: float) -> float:
        forms = {HAND_MADE: trainings(0.98, 0.96, 1.0), RECURRENT: trainings(*ratios), NONE: trainings(1.0, 1.0, 1.0)}
        return compared(forms, groups)[0]["ships"]

    assert ships(0.95, 0.95, 1.0) == 1.0
    assert ships(0.97, 0.967, 1.0) == 0.0
    assert ships(0.85, 0.85, 1.006) == 0.0
