"""Gathering experience: choosing under masks, episodes one after another, out of phase, and going on exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.twin import Simulation
from tests.trainer.autoscaling.ppo.twin_worlds import SHORT, TRACE, WORLD, TwinWorlds
from trainer.autoscaling.environments import Environments
from trainer.autoscaling.fast_lstm import choose
from trainer.autoscaling.ppo_lstm import Collector, NetworkKind, PolicyValueNetwork
from trainer.autoscaling.tasks import Stage


def chosen(answer, masks, *, greedy=False, seed=0):
    batch, heads, _ = masks.shape
    actions, log_probs, values = (
        np.zeros((batch, heads), np.int64),
        np.zeros(batch, np.float32),
        np.zeros(batch, np.float32),
    )
    uniforms = np.random.default_rng(seed).random((batch, heads))
    choose(answer, masks, uniforms, np.full(batch, greedy), actions, log_probs, values)
    return actions, log_probs, values


@given(
    seed=st.integers(0, 2**32),
    heads=st.integers(1, 3),
    choices=st.integers(2, 7),
    scale=st.sampled_from([0.01, 1.0, 30.0]),
    greedy=st.booleans(),
)
def test_a_choice_is_never_masked_and_has_the_probability_that_it_is_told_to_have(
    seed, heads, choices, scale, greedy
) -> None:
    rng = np.random.default_rng(seed)
    answer = (rng.normal(size=(6, heads * choices + 1)) * scale).astype(np.float32)
    masks = rng.random((6, heads, choices)) < 0.5
    masks[..., 0] = True
    actions, log_probs, values = chosen(answer, masks, greedy=greedy, seed=seed)
    rows, columns = np.indices(actions.shape)
    assert masks[rows, columns, actions].all()
    logits = torch.from_numpy(answer[:, :-1]).view(6, heads, choices).masked_fill(~torch.from_numpy(masks), -1e9)
    expected = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(actions)[..., None]).sum((1, 2))
    np.testing.assert_allclose(log_probs, expected, atol=1e-4)
    assert np.array_equal(values, answer[:, -1])
    if greedy:
        assert np.array_equal(actions, logits.argmax(-1).numpy())


def test_choices_are_drawn_as_often_as_the_network_says() -> None:
    answer = np.tile(np.log(np.array([0.5, 0.2, 0.2, 0.1, 1.0], dtype=np.float32)), (40_000, 1))
    masks = np.tile(np.array([True, False, True, True]), (40_000, 1, 1))
    actions, _, _ = chosen(answer, masks)
    assert np.bincount(actions[:, 0], minlength=4) / 40_000 == pytest.approx([0.625, 0.0, 0.25, 0.125], abs=0.01)


def network_for(worlds: TwinWorlds) -> PolicyValueNetwork:
    return PolicyValueNetwork(NetworkKind.LSTM, worlds.n_features, worlds.n_actions, 16, seed=1)


def collector(
    make=TwinWorlds,
    actions="act-7",
    observation="obs-7",
    *,
    batch=4,
    first_seed=1_000_000,
    weights=(),
    config=WORLD,
    **prices,
) -> Collector:
    worlds, rng = (
        make(config, (TRACE, SHORT), batch, observation=observation, actions=actions),
        np.random.default_rng(5),
    )
    stage = Stage(config, (TRACE, SHORT), weights)
    return Collector(Environments(worlds, stage, batch, first_seed, rng, **prices), network_for(worlds), True, rng)


def same(one, other) -> None:
    for name in (
        "observations",
        "starts",
        "actions",
        "masks",
        "log_probs",
        "rewards",
        "values",
        "dones",
        "last_values",
    ):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert all(torch.equal(a, b) for a, b in zip(one.memory, other.memory, strict=True))


@pytest.mark.parametrize(("observation", "actions"), [("obs-7", "act-7"), ("obs-v2", "act-multi")])
def test_the_compiled_simulator_gives_the_same_experience_as_the_plain_one(observation, actions) -> None:
    plain, fast = (collector(make, actions, observation, first_seed=7) for make in (TwinWorlds, AutoscalingBatch))
    one, other = plain.collect(40), fast.collect(40)
    same(one, other)
    assert one.lengths == other.lengths
    assert one.costs == pytest.approx(other.costs, abs=1e-9)


def test_rewards_of_an_episode_add_up_to_its_cost() -> None:
    made = collector().collect(80)
    assert len(made.costs) >= 4
    first = int(np.argmax(made.dones[:, 0]))
    simulation = Simulation(WORLD, (TRACE, SHORT)[_trace_of(4)], 1_000_000)
    for t in range(first + 1):
        simulation.step(int(made.actions[t, 0, 0]))
    assert simulation.finished
    assert made.rewards[: first + 1, 0].sum() == pytest.approx(-simulation.measures().cost, abs=1e-9)


def _trace_of(batch: int) -> int:
    """Return the trace of copy 0's first episode, drawn as the environments draw it."""
    return int(np.random.default_rng(5).choice(2, size=batch, p=[0.5, 0.5])[0])


def test_progress_is_paid_once_over_an_episode_and_every_step_has_its_price() -> None:
    plain, paid = collector().collect(60), collector(progress_reward=10.0, time_price=0.5).collect(60)
    assert np.array_equal(plain.actions, paid.actions)
    added = paid.rewards - plain.rewards + 0.5
    assert (added >= -1e-12).all()
    for b in range(4):
        first = int(np.argmax(plain.dones[:, b]))
        assert added[: first + 1, b].sum() == pytest.approx(10.0)


def test_an_episode_starts_with_no_memory_and_where_the_last_one_ended() -> None:
    made = collector().collect(80)
    ends = made.dones[:-1].astype(bool)
    assert np.array_equal(made.starts[1:], made.dones[:-1])
    assert (made.observations[1:][ends][:, 1:] == 0).all()
    answer = network_of(made).unroll(torch.from_numpy(made.observations), torch.from_numpy(made.starts), made.memory)
    np.testing.assert_allclose(answer[..., -1].detach().numpy(), made.values, atol=1e-5)


def network_of(made) -> PolicyValueNetwork:
    return PolicyValueNetwork(NetworkKind.LSTM, made.observations.shape[2], made.masks.shape[3], 16, seed=1)


def test_an_episode_that_is_cut_short_has_the_value_that_the_network_sees_ahead() -> None:
    made = collector(batch=2, first_seed=0, config=replace(WORLD, max_steps=3)).collect(6)
    assert made.dones[:, 0].tolist() == [0, 0, 1, 0, 0, 1]
    assert (made.bootstraps != 0).astype(float).tolist() == made.dones.tolist()
    # The value ahead is that of the observation after the step, with the memory of the episode so far.
    network, memory = network_of(made), network_of(made).no_memory(2)
    for t in range(3):
        _, _, memory = network.step(torch.from_numpy(made.observations[t]), memory)
    simulation = Simulation(replace(WORLD, max_steps=3), (TRACE, SHORT)[_trace_of(2)], 0)
    for t in range(3):
        simulation.step(int(made.actions[t, 0, 0]))
    _, ahead, _ = network.step(torch.from_numpy(simulation.observe())[None], tuple(part[:1] for part in memory))
    assert made.bootstraps[2, 0] == pytest.approx(ahead.item(), abs=1e-5)


def test_copies_are_out_of_phase_after_the_advance() -> None:
    gatherer = collector(batch=8, first_seed=0, weights=(1.0, 0.0))
    gatherer.advance(16)
    assert len(set(gatherer.state()["elapsed"].tolist())) >= 6


@pytest.mark.parametrize("make", [TwinWorlds, AutoscalingBatch])
@pytest.mark.parametrize("actions", ["act-7", "act-multi"])
def test_a_collector_goes_on_from_its_state_as_if_it_had_never_stopped(make, actions) -> None:
    one = collector(make, actions, first_seed=0, progress_reward=1.0)
    one.advance(5)
    one.collect(33)
    state = one.state()
    expected = one.collect(25)
    other = collector(make, actions, first_seed=0, progress_reward=1.0)
    other.collect(3)
    other.restore(state)
    same(other.collect(25), expected)
