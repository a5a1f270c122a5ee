"""The Gymnasium environment keeps to Gymnasium's rules and plays the very episodes of the simulator."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.workload import make_trace
from simulator.autoscaling.actions import MULTI_CHANGES
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.view import EpisodeOver
from simulator.autoscaling.world_file import preset
from simulator.gym import ENV_ID, AutoscalingEnv
from simulator.workloads.synthetic import train_fit, train_text
from tests.architecture.product import MODULES, imported_anywhere

TWO_JOBS = make_trace("two-jobs", [0.0, 30.0], [100.0, 50.0])


def test_gymnasiums_own_wrappers_take_it() -> None:
    env = gymnasium.make(f"simulator.gym:{ENV_ID}", traces=TWO_JOBS, render_mode="ansi")
    assert isinstance(env.unwrapped, AutoscalingEnv)
    env.reset(seed=0)
    while not env.step(env.action_space.sample())[2]:
        assert str(env.render()).startswith("step ")
    env.close()


def test_it_is_made_and_shown_as_a_picture_as_stable_baselines3_asks() -> None:
    env = gymnasium.make(f"simulator.gym:{ENV_ID}", render_mode="rgb_array")
    env.reset(seed=0)
    before: Any = env.render()
    assert (before.shape, before.dtype) == ((136, 320, 3), np.uint8)
    for _ in range(3):
        env.step(1)
    after: Any = env.render()
    assert after.shape == before.shape
    assert (after != before).any()
    env.close()


@settings(max_examples=20, deadline=None)
@given(
    actions=st.lists(st.integers(0, 6), min_size=1, max_size=25),
    seed=st.integers(0, 2**31),
    preset_name=st.sampled_from(("train-text", "paper-live", "compat")),
)
def test_an_episode_is_the_simulators_own_with_that_seed(actions: list[int], seed: int, preset_name: str) -> None:
    env = AutoscalingEnv(train_fit(), preset_name)
    simulation = Simulation(preset(preset_name), train_fit(), seed)
    obs, info = env.reset(seed=seed)
    np.testing.assert_array_equal(obs, simulation.observe())
    np.testing.assert_array_equal(info["mask"], simulation.mask())
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(np.int64(action))
        result = simulation.step(action)
        np.testing.assert_array_equal(obs, result.obs)
        np.testing.assert_array_equal(info["mask"], simulation.mask())
        assert (reward, terminated, truncated) == (result.reward, result.done, result.truncated)
        seen = result.info
        names = ("step", "now_s", "waiting", "executing", "finished", "submitted", "ready", "booting", "draining")
        assert {name: info[name] for name in names} == {name: getattr(seen, name) for name in names}
        cores = (info["cores_ready"], info["cores_booting"], info["cores_busy"])
        assert cores == (seen.cores_ready, seen.cores_booting, seen.cores_busy)
        assert (info["rent"], info["penalty"], info["accepted"]) == (result.rent, result.penalty, seen.accepted)


@settings(max_examples=10, deadline=None)
@given(actions=st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=15), seed=st.integers(0, 1000))
def test_a_change_of_every_type_at_once_is_an_index_into_the_changes_per_type(
    actions: list[tuple[int, ...]], seed: int
) -> None:
    env = AutoscalingEnv(train_fit(), observation="obs-v2", actions="act-multi")
    simulation = Simulation(preset("train-fit"), train_fit(), seed)
    env.reset(seed=seed)
    for choice in actions:
        obs, reward, _, _, info = env.step(np.array(choice))
        result = simulation.step([MULTI_CHANGES[index] for index in choice])
        np.testing.assert_array_equal(obs, simulation.observe_v2())
        np.testing.assert_array_equal(info["mask"], simulation.mask_multi())
        np.testing.assert_array_equal(env.action_masks(), simulation.mask_multi().reshape(-1))
        outcome = result.info.outcome
        assert info["accepted"] == tuple(a + r for a, r in zip(outcome.added, outcome.removed, strict=True))
        assert reward == result.reward


@pytest.mark.parametrize(("most", "ends"), [(200, [(False, False), (True, False)]), (1, [(False, True)])])
def test_an_end_is_reported_once_as_what_it_is_and_a_step_after_it_is_refused(
    most: int, ends: list[tuple[bool, bool]]
) -> None:
    env = AutoscalingEnv(TWO_JOBS, SimulationConfig(max_steps=most))
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in ends] == ends
    with pytest.raises(EpisodeOver, match="reset"):
        env.step(0)
    env.reset()
    assert env.step(0)[2:4] == ends[0]


def test_a_refused_action_is_reported() -> None:
    env = AutoscalingEnv(TWO_JOBS)
    env.reset(seed=0)
    assert env.action_masks().tolist() == [True, True, False, True, True, True, True]
    assert env.step(2)[4]["accepted"] is False


def test_one_of_several_traces_is_drawn_by_the_seed_or_chosen() -> None:
    env = AutoscalingEnv([TWO_JOBS, train_text()])
    drawn = [env.reset(seed=n)[1]["waiting"] or env.step(0)[4]["submitted"] for n in range(20)]
    assert drawn == [env.reset(seed=n)[1]["waiting"] or env.step(0)[4]["submitted"] for n in range(20)]
    assert set(drawn) == {2, 50}
    for place, submitted in ((0, 2), (1, 50)):
        env.reset(options={"trace": place})
        assert env.step(0)[4]["submitted"] == submitted


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"traces": []}, "traces"),
        ({"config": "moon"}, "preset"),
        ({"observation": "obs-9"}, "observation"),
        ({"actions": "act-9"}, "actions"),
        ({"render_mode": "human"}, "render_mode"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        AutoscalingEnv(**arguments)  # type: ignore[arg-type]


def test_a_trace_or_action_that_does_not_exist_is_refused() -> None:
    env = AutoscalingEnv(TWO_JOBS)
    with pytest.raises(BadInput, match="trace"):
        env.reset(options={"trace": 1})
    env.reset(seed=0)
    with pytest.raises(BadInput, match="action"):
        env.step(7)


def test_the_moment_can_be_shown_as_text() -> None:
    env = AutoscalingEnv(TWO_JOBS, SimulationConfig(boot_low_s=71, boot_high_s=71), render_mode="ansi")
    env.reset(seed=0)
    env.step(5)
    assert env.render() == (
        "step    1  0:01:00  m5a.large 1  m5a.xlarge 1  m5a.2xlarge 1+1  cores 2/14 busy  "
        "jobs 0 waiting, 2 running, 0 finished"
    )
    assert AutoscalingEnv(TWO_JOBS).render() is None


def test_nothing_else_of_the_simulator_imports_gymnasium() -> None:
    modules = [module for module in MODULES if module.parts[0] == "simulator"]
    assert [m.as_posix() for m in modules if "gymnasium" in imported_anywhere(m)] == [
        "simulator/gym/__init__.py",
        "simulator/gym/autoscaling.py",
        "simulator/gym/base.py",
        "simulator/gym/deferral.py",
        "simulator/gym/oversubscription.py",
        "simulator/gym/placement.py",
    ]
