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
from domain.rules.deferral.jobs import Ints, Jobs, jobs_of, objective, violations_of
from simulator.deferral.scenarios import Episode, episode
from simulator.deferral.world import World, Worlds, play
from tests.simulator.deferral.test_parity import random_episode


def capacity_of(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def checked(played: Episode) -> list[Ints]:
    """Play an episode by each kind of policy, and check the schedules."""
    starts = []
    for policy in (ordered("fifo"), ordered("sjf", "skip"), packed()):
        start = play(played, policy)
        assert violations_of(played.jobs, start, played.capacity, online=True) == []
        starts.append(start)
    return starts


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


def test_an_episode_without_jobs() -> None:
    for start in checked(Episode(jobs_of([]), capacity_of(5, 0, 3), 0)):
        assert start.size == 0


def test_an_episode_without_capacity() -> None:
    one = episode("valley", 4)
    for start in checked(Episode(one.jobs, np.zeros_like(one.capacity), 0)):
        assert (start == -1).all()


def test_windows_of_no_steps() -> None:
    one = episode("valley", 4)
    for start in checked(Episode(one.jobs._replace(latest=one.jobs.earliest), one.capacity, 0)):
        np.testing.assert_array_equal(start[start >= 0], one.jobs.earliest[start >= 0])


def test_five_thousand_jobs_in_one_step() -> None:
    draws = np.random.default_rng(2)
    count = 5_000
    jobs = Jobs(
        draws.integers(1, 9, count),
        draws.integers(1, 7, count),
        *(np.full(count, k, dtype=np.int64) for k in (2, 5, 2)),
    )
    for start in checked(Episode(jobs, capacity_of(*[60] * 12), 0)):
        assert 0 < (start >= 0).sum() < count


def test_jobs_that_run_beyond_the_end_earn_in_full() -> None:
    played = Episode(jobs_of([(2, 1_000_000, 1, 1, 0)]), capacity_of(3, 3), 0)
    for start in checked(played):
        score = objective(played.jobs, start, played.capacity)
        assert (score.utilisation, score.violation) == (2_000_000, 0)


def test_an_episode_of_one_step() -> None:
    for start in checked(Episode(jobs_of([(2, 4, 0, 0, 0), (2, 4, 0, 0, 0)]), capacity_of(3), 0)):
        assert start.tolist() == [0, -1]


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
