"""Importance of inputs: what a policy does not look at counts nothing, what it acts on counts dollars."""

from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput
from domain.observations.autoscaling_scorer import CANDIDATES, STATES
from domain.rules.queue_rule import RuleSetting
from simulator.autoscaling.branching import BranchedEpisodes, advance, score, without_memory
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_rand, train_text
from tests.trainer.autoscaling.evaluation.reacting_model import reacting
from trainer.autoscaling.evaluation.importance import Effect, Importance, _shuffled, held, importance_of
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.scorer import INPUTS, Recipe, Scorer
from trainer.autoscaling.scorer_runs import write_model
from trainer.kit.intervals import Interval

WAIT_RECENT = 6
CASES = [Case("T1 boot 0", "T1", "training", preset("train-text"), train_text(), 0)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Importance:
    return importance_of(reacting(tmp_path_factory.mktemp("model"), WAIT_RECENT, above=0.85), CASES, repeats=4)


def test_only_the_input_the_policy_acts_on_counts(found: Importance) -> None:
    by_name = {effect.name: effect.added for effect in found.effects}
    assert {name for name, added in by_name.items() if added.mean != 0.0} == {"wait_recent"}
    assert by_name["wait_recent"].low > 0.01 * found.cost


def test_the_smaller_model_has_what_counts_and_the_rest_together_adds_nothing(found: Importance) -> None:
    assert found.proposal == ("wait_recent",)
    assert len(found.near_zero) == 6
    assert found.redundant
    assert found.together is not None
    assert found.together.added.mean == 0.0
    assert found.words().endswith("only: wait_recent.")


def test_the_most_important_input_comes_first(found: Importance) -> None:
    assert found.lines()[0][0] == "wait_recent"
    assert found.lines()[-1][0] == "these 6 together"


def test_the_same_seed_gives_the_same_figures(tmp_path: Path, found: Importance) -> None:
    again = importance_of(reacting(tmp_path, WAIT_RECENT, above=0.85), CASES, repeats=4)
    assert again == found


def test_inputs_that_stand_in_for_one_another_are_not_called_redundant() -> None:
    none, much = Interval(0.0, -0.1, 0.1, 20), Interval(3.0, 2.0, 4.0, 20)
    effects = (Effect(("a",), none), Effect(("b",), none), Effect(("c",), much))
    found = Importance("m", 10.0, 1, 20, effects, ("a", "b"), Effect(("a", "b"), much), ("c",))
    assert not found.redundant
    assert "replace one another" in found.words()


def test_shuffling_keeps_the_values_and_goes_on_when_the_episode_lasts_longer() -> None:
    seen = np.arange(20, dtype=np.float32).reshape(10, 2)
    alter = _shuffled(seen, [1], np.random.default_rng(0))
    altered = [alter(step, np.full(2, -1.0, dtype=np.float32)) for step in range(20)]
    assert {row[0] for row in altered} == {-1.0}
    for part in (altered[:10], altered[10:]):
        assert sorted(float(row[1]) for row in part) == seen[:, 1].tolist()
    assert [row[1] for row in altered[:10]] != [row[1] for row in altered[10:]]


def scorer(directory: Path, names: tuple[str, ...], size: float) -> Path:
    """Return the file of a scorer of one voter whose score is `size` times the sum of these inputs."""
    first = np.zeros((1, len(INPUTS), 8), dtype=np.float32)
    for place, name in enumerate(names):
        first[0, INPUTS.index(name), place] = size
    second, bias = np.eye(8, dtype=np.float32)[None], np.zeros((1, 8), dtype=np.float32)
    weights = (first, bias, second, bias, np.ones((1, 8), dtype=np.float32), *without_memory(1))
    low, high = np.full(STATES, -1e6, dtype=np.float32), np.full(STATES, 1e6, dtype=np.float32)
    trained = Scorer(weights, weights, 0.0, 8.0, low, high, low, high, Recipe(hidden=8, networks=1), 0, {})
    minutes = BranchedEpisodes(preset("live-like"), train_rand(3), RuleSetting()).play(1, branch_share=1.0, most=5)
    return write_model(trained, minutes, directory)


@pytest.mark.exhaustive
def test_of_a_scorer_only_the_inputs_with_weights_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.autoscaling.evaluation.importance.AT_LARGE", 3)
    cases = [Case("T3 1", "T3", "live-like", preset("live-like"), train_rand(1), 1)]
    found = importance_of(scorer(tmp_path, ("vms_added", "removed"), 3.0), cases)
    by_name = {effect.name: effect.added.mean for effect in found.effects}
    assert len(by_name) == len(INPUTS)
    assert {name for name, added in by_name.items() if added != 0.0} <= {"vms_added", "removed"}
    assert by_name["vms_added"] != 0.0
    # It only ever adds VMs: nothing is saved, and what costs nothing may go.
    assert found.gain is not None
    assert found.gain < 0.0
    assert "vms_added" in found.near_zero
    assert found.words().endswith(f"--set left_out={'+'.join(found.near_zero)}")


def test_an_input_that_is_held_counts_as_its_value_whatever_it_is() -> None:
    rng = np.random.default_rng(5)
    shapes = ((2, len(INPUTS) + 3, 6), (2, 6), (2, 6, 6), (2, 6), (2, 6), (2, STATES, 12), (2, 3, 12), (2, 12))
    weights = tuple(rng.normal(0.0, 0.4, size=shape).astype(np.float32) for shape in shapes)
    values, places = rng.normal(size=len(INPUTS)), [3, STATES + 2]
    state, candidates = rng.normal(size=STATES), rng.normal(size=(4, CANDIDATES))
    found, wanted, changed = np.zeros(4), np.zeros(4), held(weights, places, values)
    first, second = np.zeros((2, 2, 3)), np.zeros((2, 2, 3))
    advance(state, changed, first)
    score(state, candidates, 4, changed, first, found)
    state[3], candidates[:, 2] = values[3], values[STATES + 2]
    advance(state, weights, second)
    score(state, candidates, 4, weights, second, wanted)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_without_a_case_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        importance_of(reacting(tmp_path, WAIT_RECENT), [])
