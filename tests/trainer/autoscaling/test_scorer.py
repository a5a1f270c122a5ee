"""A scorer learns from branches which target costs less than the queue rule's, for whatever fleet it is shown."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from torch import Tensor

from domain.errors import BadInput
from domain.observations.autoscaling_scorer import CANDIDATES, STATES, judge
from domain.rules.queue_rule import RuleSetting
from simulator.autoscaling.branching import NO_WEIGHTS, Weights, advance, score
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_rand
from trainer.autoscaling.lessons import (
    CORES,
    HELD_OUT_TYPES,
    MOST_CORES,
    TRAINED_TYPES,
    Lesson,
    Map,
    fleet_lessons,
    fleet_of,
    suite_lessons,
    tuned_rule,
)
from trainer.autoscaling.scorer import (
    ANNOUNCED,
    EVERYTHING,
    FLEETS,
    GAIN_CLIP,
    HELD_OUT,
    INPUTS,
    MARGINS,
    THE_RULE,
    WINDOW,
    WORTH_CLIP,
    Network,
    Plan,
    Policy,
    Recipe,
    Samples,
    Scorer,
    _stretches,
    choose_margin,
    ensemble_of,
    error_of_worth,
    expected_gain,
    fit,
    fit_seed,
    group_of,
    join,
    network_of,
    play_lessons,
    ratios,
)
from trainer.autoscaling.scorer_runs import run
from trainer.autoscaling.tasks import FAMILIES

LIVE = preset("live-like")
SMALL = Recipe(rounds=(2, 2), explore=(0.15, 0.05), most=20, hidden=8, networks=2, batch=32)


def lesson(seed: int) -> Lesson:
    return Lesson(LIVE, train_rand(seed), RuleSetting(), seed)


def test_what_an_episode_teaches_is_the_gain_over_the_rule_s_choice() -> None:
    samples = play_lessons([lesson(1_000_003)], replace(SMALL, most=1000), NO_WEIGHTS, 0.0)
    states, candidates, there, gains, worths = (part.numpy() for part in samples.tensors())
    assert states.shape[1:] == (STATES,)
    assert candidates.shape[1:] == (there.shape[1], CANDIDATES)
    assert (gains[:, 0] == 0.0).all()
    assert (there[:, :2]).all()
    assert np.abs(gains).max() <= GAIN_CLIP
    assert (worths[:, 0] == 0.0).all()
    assert np.abs(worths).max() <= WORTH_CLIP
    assert (np.sign(worths) == np.sign(gains)).all()
    assert samples.steps > 25 * len(states)
    assert (np.where(there, gains, 0.0).max(axis=1) > 0.0).mean() > 0.1, "where nothing is better, nothing is learned"


def made_up(rows: int, seed: int = 1) -> Samples:
    """Return samples in which the second candidate gains where the first feature of the state is above 0."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(rows, STATES)).astype(np.float32)
    candidates = np.zeros((rows, 3, CANDIDATES), dtype=np.float32)
    candidates[:, :, 0] = [1.0, 0.0, 0.0]
    candidates[:, 1, 2] = 1.0
    gains = np.zeros((rows, 3), dtype=np.float32)
    gains[:, 1] = np.sign(states[:, 0])
    gains[1::2, 2] = -1.0
    there = np.ones((rows, 3), dtype=np.bool_)
    there[::2, 2] = False
    return Samples(states, candidates, there, gains, gains, 0, states, np.arange(0, rows, 40), np.arange(rows))


def fitted(samples: Samples, recipe: Recipe, seed: int, start: Network | None = None) -> Network:
    return fit(samples, recipe, seed, expected_gain, start)


def test_a_fit_finds_when_a_candidate_gains() -> None:
    samples = made_up(1200)
    scorer = fitted(samples, replace(SMALL, hidden=16, epochs=25, batch=256, rate=1e-2), 0)
    states, candidates, there, gains, _ = samples.tensors()
    chosen = scorer(states, candidates, there).argmax(dim=1)
    assert float(gains.gather(1, chosen[:, None]).mean()) > 0.8 * float(gains.clamp(min=0.0).max(dim=1).values.mean())


def recalled(episodes: int, minutes: int, apart: int, seed: int) -> Samples:
    """Return samples whose second candidate gains where the first feature was above 0 `apart` minutes before."""
    whole = made_up(episodes * minutes, seed)
    first = np.arange(0, episodes * minutes, minutes)
    at = (first[:, None] + np.arange(apart, minutes, 2)).ravel()
    gains = np.zeros((at.size, 3), dtype=np.float32)
    gains[:, 1] = np.sign(whole.states[at - apart, 0])
    there = np.ones((at.size, 3), dtype=np.bool_)
    return Samples(whole.states[at], whole.candidates[at], there, gains, gains, 0, whole.minutes, first, at)


@pytest.mark.parametrize(("cells", "least", "most"), [(0, -0.2, 0.2), (8, 0.7, 1.0)])
def test_what_gains_by_an_earlier_minute_takes_a_memory(cells: int, least: float, most: float) -> None:
    unseen = tuple(name for place, name in enumerate(INPUTS) if place not in (0, STATES, STATES + 2))
    recipe = replace(SMALL, hidden=16, cells=cells, epochs=80, batch=256, rate=2e-2, left_out=unseen)
    network, other = fitted(recalled(96, 24, 2, 1), recipe, 0), recalled(64, 23, 2, 2)
    states, candidates, there, gains, _ = other.tensors()
    hidden = None
    if network.memory is not None:
        seen, _ = network.memory(torch.from_numpy(other.minutes).reshape(64, 23, STATES).transpose(0, 1))
        hidden = seen.transpose(0, 1).flatten(0, 1)[other.at]
    chosen = network(states, candidates, there, hidden)[:, :2].argmax(dim=1)
    found = float(gains.gather(1, chosen[:, None]).mean()) / float(gains.clamp(min=0.0).max(dim=1).values.mean())
    assert least <= found <= most


def test_the_memory_continues_from_one_stretch_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, forward = [], Network.forward

    def spy(network: Network, states: Tensor, candidates: Tensor, there: Tensor, hidden: Tensor) -> Tensor:
        shown.append(hidden.detach().numpy().copy())
        return forward(network, states, candidates, there, hidden)

    monkeypatch.setattr("trainer.autoscaling.scorer.WINDOW", 8)
    monkeypatch.setattr(Network, "forward", spy)
    samples = recalled(4, 24, 2, 1)
    network = fitted(samples, replace(SMALL, cells=3, epochs=1, rate=1e-9), 0)
    assert len(shown) == 3
    assert network.memory is not None
    whole, _ = network.memory(torch.from_numpy(samples.minutes).reshape(4, 24, STATES).transpose(0, 1))
    wanted = whole.transpose(0, 1).flatten(0, 1)[samples.at].detach().numpy()
    found = np.concatenate(shown)
    np.testing.assert_allclose(found[found[:, 0].argsort()], wanted[wanted[:, 0].argsort()], atol=1e-5)


def test_a_pass_through_time_shows_every_sample_once_in_its_minute() -> None:
    long = play_lessons(
        [lesson(seed) for seed in (1_000_003, 1_000_004)], replace(SMALL, cells=2, most=1000), NO_WEIGHTS, 0.0
    )
    assert (long.minutes[long.at] == long.states).all()
    stretches = list(_stretches(long, replace(SMALL, cells=2, epochs=2), torch.Generator().manual_seed(0)))
    assert sorted(torch.cat([one.samples for one in stretches]).tolist()) == sorted([*range(len(long.at))] * 2)
    assert sum(one.begins for one in stretches) == 2
    for one in stretches:
        assert one.minutes is not None
        assert one.at is not None
        assert one.minutes.shape[0] <= WINDOW
        assert (one.minutes.flatten()[one.at].numpy() == long.at[one.samples.numpy()]).all()


def test_a_candidate_that_does_not_exist_is_never_chosen() -> None:
    states, candidates, there, _, _ = made_up(50).tensors()
    scorer = fitted(made_up(50), SMALL, 0)
    assert (scorer(states, candidates, there)[~there] < -1e8).all()


@pytest.mark.parametrize("cells", [0, 6])
def test_the_compiled_scores_are_those_of_the_network(cells: int) -> None:
    scorers = [fitted(made_up(64), replace(SMALL, cells=cells), seed) for seed in (0, 1)]
    samples = made_up(5)
    states, candidates, there, _, _ = samples.tensors()
    there[:] = True
    hidden = [None if s.memory is None else s.memory(states)[0] for s in scorers]
    logits = torch.stack([s(states, candidates, there, h) for s, h in zip(scorers, hidden, strict=True)])
    weights = ensemble_of([s.weights() for s in scorers])
    out, recurrent = np.zeros(3), np.zeros((2, 2, cells))
    for row in range(5):
        advance(samples.states[row].astype(float), weights, recurrent)
        score(samples.states[row].astype(float), samples.candidates[row].astype(float), 3, weights, recurrent, out)
        wanted = np.zeros(3)
        judge(logits[:, row].T.detach().numpy().astype(float), 3, wanted)
        np.testing.assert_allclose(out, wanted, atol=1e-5)


def test_the_network_of_gains_finds_how_much_a_candidate_gains() -> None:
    samples = made_up(1200)
    network = fit(samples, replace(SMALL, hidden=16, epochs=40, batch=256, rate=1e-2), 0, error_of_worth)
    states, candidates, there, _, worths = samples.tensors()
    found = network(states, candidates, there).detach()
    apart = (found - found[:, :1])[there]
    assert float((apart - worths[there]).abs().mean()) < 0.15


@pytest.mark.parametrize("cells", [0, 6])
def test_a_network_goes_on_from_the_weights_it_is_given(cells: int) -> None:
    samples, recipe = made_up(200), replace(SMALL, cells=cells)
    first = fitted(samples, recipe, 0)
    again = fitted(samples, replace(recipe, rate=1e-9), 1, network_of(first.weights(), 0))
    for a, b in zip(first.weights(), again.weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_without_a_minute_to_learn_from_it_is_said() -> None:
    with pytest.raises(BadInput, match="no minute has a choice"):
        made_up(0).tensors()


def test_what_is_trained_has_the_ranges_of_what_it_saw() -> None:
    found = wholly_trained(0)
    assert found.weights[0].shape == (SMALL.networks, STATES + CANDIDATES, SMALL.hidden)
    assert [part.shape[0] for part in found.gains] == [1] * 8
    assert found.low.shape == found.high.shape == found.least.shape == found.greatest.shape == (STATES,)
    assert (found.least <= found.low).all()
    assert (found.low <= found.high).all()
    assert (found.high <= found.greatest).all()
    assert {part.dtype for part in (found.low, found.high, found.least, found.greatest)} == {np.dtype(np.float32)}
    assert found.figures["branched_minutes"] > 0 < found.figures["simulator_steps"]


def as_found(scorer: Scorer, spread: Map) -> Scorer:
    return scorer


def trained(recipe: Recipe, seed: int, start: Scorer | None = None) -> Scorer:
    plan = Plan(recipe, seed, partial(suite_lessons, world=LIVE), {}, as_found, start)
    with TemporaryDirectory() as folder:
        return run(plan, Path(folder))


@cache
def wholly_trained(seed: int) -> Scorer:
    return trained(SMALL, seed)


def test_a_training_that_starts_from_weights_hardly_moves_them_at_a_low_rate() -> None:
    start = wholly_trained(0)
    crept = trained(replace(SMALL, rate=1e-9), 1, start)
    for name in ("weights", "gains"):
        for a, b in zip(getattr(start, name), getattr(crept, name), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


UNSEEN = ("waiting_jobs", "announced_next", "vms_added")


def test_inputs_that_are_left_out_have_no_weight_and_no_range() -> None:
    found = trained(replace(SMALL, left_out=UNSEEN), 0)
    places = [INPUTS.index(name) for name in UNSEEN]
    for weights in (found.weights[0], found.gains[0]):
        assert not weights[:, places].any()
        assert (np.delete(weights, places, axis=1) != 0.0).mean() > 0.9
    assert found.least[places[0]] == -EVERYTHING == -found.greatest[places[0]]
    assert found.greatest[INPUTS.index("requested_cores")] < 1e6
    whole = wholly_trained(0)
    assert not np.array_equal(np.delete(whole.weights[0], places, axis=1), np.delete(found.weights[0], places, axis=1))


def test_a_scorer_with_fewer_inputs_keeps_them_out_when_it_goes_on() -> None:
    after = trained(replace(SMALL, left_out=UNSEEN), 1, wholly_trained(0))
    assert not after.weights[0][:, [INPUTS.index(name) for name in UNSEEN]].any()


@pytest.mark.parametrize("names", [("waiting",), ("waiting_jobs", "none"), INPUTS])
def test_inputs_to_leave_out_are_named_as_they_are_called_and_not_all(names: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match="left_out"):
        Recipe(left_out=names)


def test_longer_branches_take_more_steps() -> None:
    recipes = (SMALL, replace(SMALL, branch_steps=60))
    steps = [play_lessons([lesson(1_000_003)], recipe, NO_WEIGHTS, 0.0).steps for recipe in recipes]
    assert steps[1] > 1.5 * steps[0]


@pytest.mark.parametrize(("parts", "groups"), [(20, 5), (7, 3), (2, 5), (1, 1)])
def test_networks_of_a_group_share_their_lessons_and_groups_none(parts: int, groups: int) -> None:
    recipe = replace(SMALL, networks=2 * groups, groups=groups)
    paths = [Path(str(part)) for part in range(parts)]
    own = [group_of(paths, recipe, 300 + k) for k in range(recipe.networks)]
    there = min(parts, groups)
    assert sorted(part for one in own[:there] for part in one) == sorted(paths)
    assert own[there : 2 * there] == own[:there]


def test_a_network_learns_from_the_lessons_of_its_group_alone() -> None:
    parts = {Path(str(seed)): play_lessons([lesson(seed)], SMALL, NO_WEIGHTS, 0.0) for seed in (3, 4)}

    def network(recipe: Recipe, paths: Sequence[Path]) -> tuple[Weights, ...]:
        return fit_seed(join([parts[path] for path in group_of(paths, recipe, 1)]), recipe, 1, None)

    halves, (first, second) = replace(SMALL, groups=2), tuple(parts)
    alone, other = network(halves, [first, second]), network(halves, [Path("absent"), second])
    everything = network(SMALL, [first, second])
    assert all(np.array_equal(a, b) for a, b in zip(alone, other, strict=True))
    assert not np.array_equal(alone[0], everything[0])


def test_the_same_seed_trains_the_same_weights_and_another_does_not() -> None:
    first, again, other = wholly_trained(0).weights, wholly_trained.__wrapped__(0).weights, wholly_trained(1).weights
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    costs = ratios([lesson(700_100)], Policy(first, SMALL.margin, SMALL.idle_limit_min))
    assert costs.shape == (1, 2)


def test_the_margin_of_a_scorer_that_knows_nothing_leaves_the_rule() -> None:
    rng = np.random.default_rng(0)
    found = replace(wholly_trained(0), recipe=replace(SMALL, selection=3))
    wild = tuple((30.0 * rng.normal(size=part.shape)).astype(np.float32) for part in found.weights)
    chosen = choose_margin(replace(found, weights=wild), world=LIVE)
    assert chosen.margin == MARGINS[-1]
    assert chosen.figures["selection/worst"] >= chosen.figures[HELD_OUT] > 0.0
    none = choose_margin(replace(found, weights=NO_WEIGHTS), world=LIVE)
    assert none.margin == MARGINS[-1]
    blind = [f"selection/{group}" for group in (*FAMILIES, FLEETS)]
    assert {none.figures[name] for name in blind} == {1.0}
    assert none.figures[f"selection/{ANNOUNCED}"] < 1.0, "the rule prepares for what is announced"


def test_the_margin_is_the_same_however_its_cases_are_spread() -> None:
    found = replace(wholly_trained(0), recipe=replace(SMALL, selection=3))
    backwards = choose_margin(found, lambda work, items: reversed([work(item) for item in reversed(items)]), world=LIVE)
    assert backwards.figures == choose_margin(found, world=LIVE).figures


def test_lessons_of_fleets_at_large_bring_the_rule_tuned_for_each() -> None:
    (first,) = fleet_lessons(5, 1)
    (again,) = fleet_lessons(5, 1)
    assert (first.config, first.rule, first.seed) == (again.config, again.rule, again.seed)
    assert first.config == fleet_of(first.seed).config


@pytest.mark.parametrize("types", [TRAINED_TYPES, HELD_OUT_TYPES])
def test_fleets_at_large_are_drawn_within_their_bounds_and_alike_from_one_seed(types: tuple[int, ...]) -> None:
    for seed in range(30):
        fleet = fleet_of(seed, types)
        assert fleet == fleet_of(seed, types)
        assert len(fleet.config.types) in types
        assert set(fleet.config.cores) <= set(CORES)
        assert fleet.config.max_cores <= MOST_CORES + sum(fleet.config.cores)
        trace = fleet.trace(0)
        assert trace.digest == fleet.trace(0).digest != fleet.trace(1).digest
        assert 3 <= trace.jobs <= 20_000
        assert trace.arrival_s.min() == 0.0


def test_the_rule_is_tuned_for_the_fleet() -> None:
    fleet = fleet_of(5_000_005)
    found = tuned_rule(fleet, 1)
    assert found in {tuned_rule(fleet, 1)}
    worst = replace(found, horizon_s=60.0 if found.horizon_s > 300.0 else 1920.0)
    costs = [ratios([Lesson(fleet.config, fleet.trace(1), rule, 1)], THE_RULE)[0, 1] for rule in (found, worst)]
    assert costs[0] <= costs[1]
