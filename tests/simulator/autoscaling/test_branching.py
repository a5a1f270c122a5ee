"""Branches are exact: the rule's own play is that of the policy, and a branch is the episode that would have been."""

import numpy as np
import pytest

from domain.announcements import Announcement, rows_of
from domain.errors import BadInput
from domain.observations.autoscaling_scorer import (
    ANNOUNCED_NAMES,
    CANDIDATE_FEATURES,
    CANDIDATES,
    GAIN_MIN,
    STATE_FEATURES,
    STATES,
    gain_unit,
)
from domain.rules.autoscaling import MOST_CANDIDATES, candidate_targets
from domain.rules.queue_rule import RuleSetting
from domain.workload import Trace, make_trace
from simulator.autoscaling.actions import orders_of_vector
from simulator.autoscaling.batch import FastSimulation
from simulator.autoscaling.branching import BRANCH_STEPS, BranchedEpisodes, Weights, score, without_memory
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_rand
from trainer.autoscaling.policy_names import policy_of, run_many

LIVE = preset("live-like")
WORLDS = [
    (LIVE, RuleSetting()),
    (LIVE, RuleSetting(150.0, 120.0)),
    (preset("train-text"), RuleSetting(200.0, 240.0)),
    (LIVE, RuleSetting(300.0, 60.0, 100.0)),
]


@pytest.mark.parametrize(("world", "rule"), WORLDS)
def test_without_a_scorer_it_is_the_queue_rule_to_the_last_cent(world: SimulationConfig, rule: RuleSetting) -> None:
    for seed in (700_100, 700_103):
        trace = train_rand(seed)
        episode = BranchedEpisodes(world, trace, rule).play(seed)
        assert episode.cost == pytest.approx(run_many(rule.name, world, (trace,), (seed,))[0].cost, abs=1e-9)
        assert episode.departures == 0


def test_branching_leaves_the_episode_as_it_was() -> None:
    trace = train_rand(700_100)
    episodes = BranchedEpisodes(LIVE, trace, RuleSetting())
    plain, branched = episodes.play(7), episodes.play(7, branch_share=1.0, most=500)
    assert branched.cost == plain.cost
    assert branched.counts.size > 50
    assert (branched.counts > 1).all()


def test_a_gain_is_counted_for_the_steps_of_a_branch() -> None:
    assert GAIN_MIN == BRANCH_STEPS + 1
    found = BranchedEpisodes(LIVE, train_rand(700_100), RuleSetting()).play(7, branch_share=1.0, most=500)
    cores = np.expm1(6.0 * found.states[:, STATE_FEATURES.index("requested_cores")])
    need = 60.0 * np.expm1(8.0 * found.states[:, STATE_FEATURES.index("waiting_core_min")]) / 300.0
    cheapest = min(kind.price_per_hour / kind.cores for kind in LIVE.types)
    expected = [gain_unit(c, n, cheapest) for c, n in zip(cores, need, strict=True)]
    np.testing.assert_allclose(found.units, expected, rtol=1e-9)


def test_the_steps_that_a_play_takes_are_counted() -> None:
    trace = train_rand(700_100)
    episodes = BranchedEpisodes(LIVE, trace, RuleSetting())
    plain = episodes.play(7)
    whole = FastSimulation(LIVE, trace, 7)
    policy = policy_of(RuleSetting().name)
    policy.start(LIVE, trace)
    steps = 0
    while not (whole.finished or whole.truncated):
        whole.step_orders(policy.choose(whole))
        steps += 1
    assert plain.steps == steps
    branched = episodes.play(7, branch_share=1.0, most=1, steps=4)
    assert branched.steps == steps + 5 * branched.counts[0]


def short() -> Trace:
    return train_rand(700_102)


def test_a_branch_costs_what_the_episode_with_that_choice_costs() -> None:
    """With as many steps as the episode has left, nothing is estimated: the differences are those of whole runs."""
    trace, rule = short(), RuleSetting()
    found = BranchedEpisodes(LIVE, trace, rule).play(3, branch_share=1.0, most=1, steps=4000)
    whole = _costs_of_first_choices(trace, 3, rule)
    assert found.counts[0] == len(whole)
    ours = found.costs[0, : len(whole)]
    np.testing.assert_allclose(ours - ours[0], np.array(whole) - whole[0], atol=1e-9)


def _costs_of_first_choices(trace: Trace, seed: int, rule: RuleSetting) -> list[float]:
    """Replay in Python: at the first minute with a choice take each candidate, then the rule."""
    simulation, policy = FastSimulation(LIVE, trace, seed), policy_of(rule.name)
    policy.start(LIVE, trace)
    while True:
        rows = candidates_of(simulation, rule)
        if len(rows) > 1:
            break
        simulation.step_orders(policy.choose(simulation))
    kept, costs = simulation.state(), []
    for row in rows:
        simulation.restore(kept)
        requested = simulation.fleet_view().requested
        simulation.step_orders(orders_of_vector(row - requested, LIVE.cores))
        while not (simulation.finished or simulation.truncated):
            simulation.step_orders(policy.choose(simulation))
        costs.append(simulation.measures().cost)
    return costs


def candidates_of(simulation: FastSimulation, rule: RuleSetting) -> np.ndarray:
    view = simulation.fleet_view()
    minimum = np.where(view.cooldown_in_s > 0, np.maximum(view.requested, view.minimum), view.minimum)
    maximum = np.where(view.cooldown_out_s > 0, np.minimum(view.requested, view.maximum), view.maximum)
    out = np.zeros((MOST_CANDIDATES, view.cores.size), dtype=np.int64)
    prices = np.array([kind.price_per_hour for kind in LIVE.types])
    idle = view.idle_long(0.0)
    fixed = (view.cores, prices, view.requested, view.booting, view.idle_long(rule.idle_s), idle, minimum, maximum)
    cover = (float(view.free_cores), float(view.busy_cores))
    count = candidate_targets(view.queue.queued_core_s, rule.horizon_s, *fixed, *cover, 0.0, out)
    return out[:count]


def scorer_of(seed: int) -> tuple[Weights, ...]:
    """Return an ensemble of two networks of random weights."""
    rng = np.random.default_rng(seed)
    shapes = [(2, STATES + CANDIDATES, 8), (2, 8), (2, 8, 8), (2, 8), (2, 8)]
    return (*(rng.normal(size=shape).astype(np.float32) for shape in shapes), *without_memory(2))


def test_a_scorer_decides_and_a_margin_beyond_all_scores_leaves_the_rule() -> None:
    episodes = BranchedEpisodes(LIVE, train_rand(700_100), RuleSetting())
    rule, free = episodes.play(1), episodes.play(1, scorer_of(1))
    assert free.departures > 0
    assert free.cost != rule.cost
    assert episodes.play(1, scorer_of(1), margin=1e9).cost == rule.cost
    assert episodes.play(1, scorer_of(1), idle_limit_min=0.0).cost == rule.cost


def test_the_same_draw_explores_alike_and_another_does_not() -> None:
    episodes = BranchedEpisodes(LIVE, train_rand(700_100), RuleSetting())
    first, again, other = (episodes.play(1, explore=0.3, draw=draw).cost for draw in (5, 5, 6))
    assert first == again != other


def one_batch() -> tuple[Trace, np.ndarray]:
    """Return 60 jobs that come at once after half an hour with nothing but one short job, and what announces them."""
    arrivals = np.concatenate([[0.0], np.full(60, 1_810.0)])
    trace = make_trace("one-batch", arrivals, np.full(61, 120.0))
    return trace, np.array(rows_of([Announcement(at=1_810.0, jobs=60, job_core_s=120.0)]))


def test_announcements_show_in_the_state_and_none_leave_the_rule_as_it_is() -> None:
    trace, rows = one_batch()
    episodes = BranchedEpisodes(LIVE, trace, RuleSetting())
    plain = episodes.play(2, branch_share=1.0, most=100)
    told = episodes.play(2, branch_share=1.0, most=100, announcements=rows)
    flags = slice(STATES - len(ANNOUNCED_NAMES), None)
    assert not plain.states[:, flags].any()
    assert (told.states[:, -1] == 1.0).all()
    none = episodes.play(2, branch_share=1.0, most=100, announcements=rows[:0])
    assert (none.states[:, flags] == [0.0] * (len(ANNOUNCED_NAMES) - 1) + [1.0]).all()
    assert np.array_equal(none.costs, plain.costs)
    assert none.cost == plain.cost


def test_a_rule_that_knows_of_a_batch_prepares_for_it_and_pays_less() -> None:
    trace, rows = one_batch()
    episodes = BranchedEpisodes(LIVE, trace, RuleSetting())
    plain, told = (episodes.play(2, branch_share=1.0, most=100, announcements=given) for given in (None, rows))
    assert told.cost < plain.cost
    row = int(np.flatnonzero(told.states[:, STATE_FEATURES.index("announced_5")] > 0.0)[0])
    minutes = np.expm1((1.0 - told.states[row, STATE_FEATURES.index("announced_next")]) * np.log1p(40.0))
    assert minutes == pytest.approx(70.0 / 60.0), "a VM boots in 45 to 97 s: 130 s before is too early"
    seen = told.candidates[row, : told.counts[row]]
    hold = int(np.flatnonzero(seen[:, CANDIDATE_FEATURES.index("is_hold")])[0])
    assert seen[0, CANDIDATE_FEATURES.index("added")] > 0.0
    assert told.costs[row, 0] < told.costs[row, hold]


def test_the_guard_leaves_a_fleet_that_is_prepared_for_announced_work() -> None:
    trace, rows = one_batch()
    episodes = BranchedEpisodes(LIVE, trace, RuleSetting())
    scorers = [scorer_of(seed) for seed in range(5)]
    assert not any(episodes.play(2, scorer, idle_limit_min=0.0).departures for scorer in scorers)
    assert any(episodes.play(2, scorer, idle_limit_min=0.0, announcements=rows).departures for scorer in scorers)


def test_announcements_of_another_shape_are_refused() -> None:
    trace, rows = one_batch()
    with pytest.raises(BadInput, match="at, jobs, job_core_s and over_s"):
        BranchedEpisodes(LIVE, trace, RuleSetting()).play(2, announcements=rows[:, :3])


def test_a_closed_loop_is_refused() -> None:
    with pytest.raises(BadInput, match="arrive at fixed times"):
        BranchedEpisodes(preset("paper-live"), coevolution(1), RuleSetting())


def test_with_a_temperature_a_scorer_draws_and_what_it_took_is_written_down() -> None:
    episodes = BranchedEpisodes(LIVE, train_rand(700_100), RuleSetting())
    best = episodes.play(1, scorer_of(1), branch_share=1.0, most=500, steps=-1)
    assert best.cost == episodes.play(1, scorer_of(1)).cost
    assert not best.costs.any()
    cold = episodes.play(1, scorer_of(1), temperature=1e-9, branch_share=1.0, most=500, steps=-1)
    assert cold.cost == best.cost
    assert np.array_equal(cold.taken, best.taken)
    warm, again, other = (
        episodes.play(1, scorer_of(1), temperature=5.0, branch_share=1.0, most=500, steps=-1, draw=draw)
        for draw in (1, 1, 2)
    )
    assert warm.cost == again.cost != other.cost
    assert (warm.taken >= 0).all()
    assert (warm.taken < warm.counts).all()
    assert warm.spent[0] >= 0.0
    assert (np.diff(warm.spent) >= 0.0).all()
    assert warm.spent[-1] < warm.cost
    kept = episodes.play(1, scorer_of(1), idle_limit_min=0.0, branch_share=1.0, most=500, steps=-1)
    assert (kept.taken == -1).all(), "the guard left nothing to choose"


def test_candidates_are_drawn_in_the_shares_of_their_softmax() -> None:
    episodes = BranchedEpisodes(LIVE, train_rand(700_100), RuleSetting())
    given = {"temperature": 4.0, "margin": 1.0, "branch_share": 1.0, "most": 1, "steps": -1}
    found = [episodes.play(1, scorer_of(1), draw=draw, **given) for draw in range(600)]
    count, scores = int(found[0].counts[0]), np.zeros(found[0].counts[0])
    score(found[0].states[0], found[0].candidates[0], count, scorer_of(1), np.zeros((2, 2, 0)), scores)
    scores[1:] -= 1.0
    expected = np.exp(scores / 4.0) / np.exp(scores / 4.0).sum()
    drawn = np.bincount([one.taken[0] for one in found], minlength=count) / len(found)
    np.testing.assert_allclose(drawn, expected, atol=0.06)
