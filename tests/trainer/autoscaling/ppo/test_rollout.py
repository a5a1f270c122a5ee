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
from trainer.autoscaling.networks import NetworkKind, PolicyValueNetwork
from trainer.autoscaling.rollout import NEVER, Collector, Plan, choose


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
    logits = torch.from_numpy(answer[:, :-1]).view(6, heads, choices).masked_fill(~torch.from_numpy(masks), NEVER)
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


PLAN = Plan(heads=1, batch=4, masked=True, first_seed=1_000_000, weights=np.array([0.5, 0.5]), jobs=(36, 10))


def network_for(worlds: TwinWorlds) -> PolicyValueNetwork:
    return PolicyValueNetwork(NetworkKind.LSTM, worlds.n_features, worlds.n_actions, 16, seed=1)


def collector(make=TwinWorlds, actions="act-7", observation="obs-7", plan=PLAN, config=WORLD) -> Collector:
    worlds = make(config, (TRACE, SHORT), plan.batch, observation=observation, actions=actions)
    return Collector(worlds, network_for(worlds), plan, np.random.default_rng(5))


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


@pytest.mark.parametrize(("observation", "actions", "heads"), [("obs-7", "act-7", 1), ("obs-v2", "act-multi", 3)])
def test_the_compiled_simulator_gives_the_same_experience_as_the_plain_one(observation, actions, heads) -> None:
    plan = Plan(heads=heads, batch=4, masked=True, first_seed=7, weights=np.array([0.5, 0.5]), jobs=(36, 10))
    plain, fast = (collector(make, actions, observation, plan) for make in (TwinWorlds, AutoscalingBatch))
    one, ended = plain.collect(40)
    other, ended_too = fast.collect(40)
    same(one, other)
    assert ended.steps == ended_too.steps
    assert ended.costs == pytest.approx(ended_too.costs, abs=1e-9)


def test_rewards_of_an_episode_add_up_to_its_cost() -> None:
    made, ended = collector().collect(80)
    assert len(ended.costs) >= 4
    first = int(np.argmax(made.dones[:, 0]))
    simulation = Simulation(WORLD, (TRACE, SHORT)[_trace_of(PLAN)], 1_000_000)
    for t in range(first + 1):
        simulation.step(int(made.actions[t, 0, 0]))
    assert simulation.finished
    assert made.rewards[: first + 1, 0].sum() == pytest.approx(-simulation.measures().cost, abs=1e-9)


def _trace_of(plan: Plan) -> int:
    """Return the trace of copy 0's first episode, drawn as the collector draws it."""
    return int(np.random.default_rng(5).choice(2, size=plan.batch, p=plan.weights)[0])


def test_progress_is_paid_once_over_an_episode_and_every_step_has_its_price() -> None:
    shaped = Plan(1, 4, True, 1_000_000, PLAN.weights, PLAN.jobs, progress_reward=10.0, time_price=0.5)
    plain, paid = collector().collect(60)[0], collector(plan=shaped).collect(60)[0]
    assert np.array_equal(plain.actions, paid.actions)
    added = paid.rewards - plain.rewards + 0.5
    assert (added >= -1e-12).all()
    for b in range(4):
        first = int(np.argmax(plain.dones[:, b]))
        assert added[: first + 1, b].sum() == pytest.approx(10.0)


def test_an_episode_starts_with_no_memory_and_where_the_last_one_ended() -> None:
    made, _ = collector().collect(80)
    ends = made.dones[:-1].astype(bool)
    assert np.array_equal(made.starts[1:], made.dones[:-1])
    assert (made.observations[1:][ends][:, 1:] == 0).all()
    _, values = network_of(made).unroll(torch.from_numpy(made.observations), torch.from_numpy(made.starts), made.memory)
    np.testing.assert_allclose(values.detach().numpy(), made.values, atol=1e-5)


def network_of(made) -> PolicyValueNetwork:
    return PolicyValueNetwork(NetworkKind.LSTM, made.observations.shape[2], made.masks.shape[3], 16, seed=1)


def test_an_episode_that_is_cut_short_has_the_value_that_the_network_sees_ahead() -> None:
    short = Plan(1, 2, True, 0, PLAN.weights, PLAN.jobs)
    made, _ = collector(plan=short, config=replace(WORLD, max_steps=3)).collect(6)
    assert made.dones[:, 0].tolist() == [0, 0, 1, 0, 0, 1]
    assert (made.bootstraps != 0).astype(float).tolist() == made.dones.tolist()
    # The value ahead is that of the observation after the step, with the memory of the episode so far.
    network, memory = network_of(made), network_of(made).no_memory(2)
    for t in range(3):
        _, _, memory = network.step(torch.from_numpy(made.observations[t]), memory)
    simulation = Simulation(replace(WORLD, max_steps=3), (TRACE, SHORT)[_trace_of(short)], 0)
    for t in range(3):
        simulation.step(int(made.actions[t, 0, 0]))
    _, ahead, _ = network.step(torch.from_numpy(simulation.observe())[None], tuple(part[:1] for part in memory))
    assert made.bootstraps[2, 0] == pytest.approx(ahead.item(), abs=1e-5)


def test_copies_are_out_of_phase_after_the_advance() -> None:
    gatherer = collector(plan=Plan(1, 8, True, 0, np.array([1.0, 0.0]), PLAN.jobs))
    gatherer.advance(16)
    assert len(set(gatherer.state()["elapsed"].tolist())) >= 6


@pytest.mark.parametrize("make", [TwinWorlds, AutoscalingBatch])
@pytest.mark.parametrize(("actions", "heads"), [("act-7", 1), ("act-multi", 3)])
def test_a_collector_goes_on_from_its_state_as_if_it_had_never_stopped(make, actions, heads) -> None:
    plan = Plan(heads, 4, True, 0, PLAN.weights, PLAN.jobs, progress_reward=1.0)
    one = collector(make, actions, plan=plan)
    one.advance(5)
    one.collect(33)
    state = one.state()
    expected, _ = one.collect(25)
    other = collector(make, actions, plan=plan)
    other.collect(3)
    other.restore(state)
    same(other.collect(25)[0], expected)
