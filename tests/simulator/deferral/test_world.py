"""An episode step by step: what is seen, what is earned, and the edges (deferral §1.3, §1.4, §2, §12)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.deferral.choosing import (
    DECODINGS,
    Decoding,
    Floats,
    Policy,
    ScoresUnusable,
    View,
    decode,
    ordered,
    packed,
)
from domain.rules.deferral.jobs import Ints, Jobs, jobs_of, objective
from simulator.deferral.scenarios import Episode, episode
from simulator.deferral.world import World, Worlds, play
from tests.simulator.deferral.test_parity import random_episode
from trainer.deferral.exact import violations_of


def capacity_of(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("guarded", [True, False])
def test_rewards_sum_to_the_objective_on_random_schedules(guarded: bool) -> None:
    for seed in range(30):
        played, draws = random_episode(seed), np.random.default_rng(seed)
        world, earned = World(played, guarded=guarded), 0.0
        while not world.done:
            view = world.view()
            wanted = draws.permutation(view.cur.size)[: int(draws.integers(0, 4))]
            if guarded:
                wanted = wanted[np.cumsum(view.cur.cores[wanted]) <= view.free]
            earned += world.step(wanted)
        score = objective(played.jobs, world.start, played.capacity)
        assert earned == pytest.approx(score.total, abs=1e-9)
        assert violations_of(played.jobs, world.start, played.capacity, score=score) == []


def test_a_job_is_invisible_before_it_is_submitted_and_gone_after_its_window() -> None:
    played = Episode(jobs_of([(2, 2, 3, 4, 1)]), capacity_of(*[9] * 7), 0)
    world, seen = World(played), []
    while not world.done:
        view = world.view()
        seen.append((view.fut.size, view.cur.size))
        world.step([])
    assert seen == [(0, 0), (1, 0), (1, 0), (0, 1), (0, 1), (0, 0), (0, 0)]
    assert (world.expired, world.expired_core_steps) == (1, 4)


def test_a_running_job_holds_its_cores_for_its_duration() -> None:
    world = World(Episode(jobs_of([(2, 3, 0, 0, 0)]), capacity_of(5, 4, 1, 9, 9), 0))
    seen, rewards = [], []
    for k in range(5):
        view = world.view()
        seen.append((view.free, view.his.remaining.tolist()))
        rewards.append(world.step([0] if k == 0 else []))
    assert seen == [(5, []), (2, [2]), (-1, [1]), (9, []), (9, [])]
    assert rewards == [6.0, 0.0, -10.0, 0.0, 0.0]
    assert world.done


def test_the_view_has_nothing_of_the_future() -> None:
    """An episode whose later jobs and capacities are others looks the same until then."""
    one, at = episode("valley", 3), 60
    later = one.jobs.submitted > at
    other = Episode(
        one.jobs.take(np.flatnonzero(~later)),
        np.where(np.arange(one.steps) > at, 0, one.capacity),
        one.start_h,
    )
    worlds, policy = (World(one), World(other)), packed()
    for _ in range(at + 1):
        first, second = (world.view() for world in worlds)
        assert first.step == second.step
        for a, b in zip(
            itertools.chain(first.cur, first.fut, first.his, first.history),
            itertools.chain(second.cur, second.fut, second.his, second.history),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)
        for world, view in zip(worlds, (first, second), strict=True):
            world.step(policy(view))


def test_the_history_is_that_of_the_steps_before() -> None:
    played = Episode(jobs_of([(2, 3, 0, 0, 0), (4, 1, 0, 1, 0)]), capacity_of(5, 1, 3), 0)
    world = World(played)
    assert world.view().history.capacity.size == 0
    world.step([0])
    world.step([])
    history = world.view().history
    assert [column.tolist() for column in history] == [
        [5, 1], [5, -1], [2, 1], [3.0, 4.0], [2.0, 1.0], [2, 0], [1, 0], [0, 1],
    ]  # fmt: skip


def test_hours_count_from_the_begin_of_the_episode() -> None:
    world = World(Episode(jobs_of([]), capacity_of(1, 1, 1), 167))
    assert (world.view().weekday, world.view().hour, world.view().hour_of_week) == (6, 23, 167)
    world.step([])
    assert (world.view().weekday, world.view().hour) == (0, 0)


@pytest.mark.parametrize(
    ("chosen", "words"), [([0, 0], "once"), ([5], "positions"), ([-1], "positions"), ([0, 1, 2], "6 cores and 5")]
)
def test_a_wrong_choice_is_refused_and_starts_nothing(chosen: list[int], words: str) -> None:
    world = World(Episode(jobs_of([(2, 1, 0, 0, 0)] * 3), capacity_of(5), 0))
    with pytest.raises(BadInput, match=words):
        world.step(chosen)
    assert world.t == 0
    assert (world.start == -1).all()
    assert world.step([0, 2]) == 4.0


def test_running_jobs_leave_fewer_cores_to_start_on() -> None:
    world = World(Episode(jobs_of([(3, 2, 0, 0, 0), (3, 1, 1, 1, 0)]), capacity_of(5, 5), 0))
    world.step([0])
    with pytest.raises(BadInput, match="3 cores and 2 are free"):
        world.step([0])


def test_an_episode_that_has_ended_shows_no_more() -> None:
    world = World(Episode(jobs_of([]), capacity_of(3), 0))
    world.step([])
    with pytest.raises(BadInput, match="begin another"):
        world.step([])


def test_scores_that_are_not_finite_leave_the_world_as_it_was() -> None:
    world = World(Episode(jobs_of([(2, 1, 0, 0, 0)] * 3), capacity_of(5), 0))
    view = world.view()
    with pytest.raises(ScoresUnusable):
        world.step(decode(np.array([1.0, np.nan, 0.0]), view.cur.cores, view.free))
    assert world.step(packed()(view)) == 4.0


def crowd(count: int) -> Jobs:
    """Return jobs that may all start in steps 2 to 5."""
    draws = np.random.default_rng(2)
    window = (np.full(count, k, dtype=np.int64) for k in (2, 5, 2))
    return Jobs(draws.integers(1, 9, count), draws.integers(1, 7, count), *window)


VALLEY = episode("valley", 4)
EDGES: dict[str, tuple[Episode, list[int] | None]] = {
    "no jobs": (Episode(jobs_of([]), capacity_of(5, 0, 3), 0), []),
    "no capacity": (Episode(VALLEY.jobs, np.zeros_like(VALLEY.capacity), 0), [-1]),
    "windows of no steps": (Episode(VALLEY.jobs._replace(latest=VALLEY.jobs.earliest), VALLEY.capacity, 0), None),
    "5,000 jobs in one step": (Episode(crowd(5_000), capacity_of(*[60] * 12), 0), None),
    "a job that runs beyond the end": (Episode(jobs_of([(2, 1_000_000, 1, 1, 0)]), capacity_of(3, 3), 0), [1]),
    "one step": (Episode(jobs_of([(2, 4, 0, 0, 0)] * 2), capacity_of(3), 0), [0, -1]),
}
"""Episodes at the edges, and the start of each job, or of all, where every policy has to choose the same."""


@pytest.mark.parametrize("policy", [ordered("fifo"), ordered("sjf", "skip"), packed()], ids=["fifo", "sjf", "knapsack"])
@pytest.mark.parametrize("edge", EDGES)
def test_a_schedule_at_the_edges_breaks_no_rule(edge: str, policy: Policy) -> None:
    played, expected = EDGES[edge]
    start = play(played, policy)
    score = objective(played.jobs, start, played.capacity)
    assert violations_of(played.jobs, start, played.capacity, score=score, online=True) == []
    if expected is None:
        assert 0 < (start >= 0).sum() < start.size
    else:
        np.testing.assert_array_equal(start, np.broadcast_to(expected, start.shape))


@pytest.mark.parametrize("kind", DECODINGS)
def test_the_order_in_which_jobs_are_listed_does_not_matter(kind: Decoding) -> None:
    one, draws = episode("valley", 6), np.random.default_rng(1)
    scores, order = draws.random(one.jobs.size), draws.permutation(one.jobs.size)

    def policy(scores: Floats) -> Policy:
        return lambda view: decode(scores[view.cur.job], view.cur.cores, view.free, kind)

    start = play(one, policy(scores))
    shuffled = play(Episode(one.jobs.take(order), one.capacity, one.start_h), policy(scores[order]))
    np.testing.assert_array_equal(shuffled, start[order])


def test_worlds_side_by_side_begin_the_next_episode_at_once() -> None:
    def source(seed: int) -> itertools.chain[Episode]:
        return itertools.chain.from_iterable([random_episode(k)] for k in itertools.count(seed))

    worlds, policy, ended = Worlds([source(0), source(50)]), packed(), 0
    alone, earned = World(random_episode(0)), []
    while not alone.done:
        rewards, over = worlds.step([policy(view) for view in worlds.views()])
        earned.append(alone.step(policy(alone.view())))
        assert rewards[0] == earned[-1]
        ended += int(over.sum())
    assert over[0]
    assert worlds.views()[0].step == 0
    assert ended >= 1


def test_a_view_is_the_same_until_the_step_is_made() -> None:
    world = World(episode("valley", 0))
    first: View = world.view()
    assert world.view() is first
