"""Gymnasium's own checks and vector environments, and stable-baselines3, take every environment of Trimtab."""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import product
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from simulator.gym import ENV_ID
from tests.architecture.product import ROOT
from tests.real.cache import distribution, run

STABLE_BASELINES = "stable-baselines3==2.9.2"
SEED, COPIES, STEPS_AFTER_AN_END = 7, 2, 5
REGISTERED = {name: spec for name, spec in gymnasium.registry.items() if name.startswith("Trimtab/")}
NAMES = [f"simulator.gym:{name}" for name in REGISTERED]
"""As `make` and `make_vec` take them in a process that has not imported the module."""


def test_each_environment_is_registered() -> None:
    expected = {f"{name}-v0" for name in ("Autoscaling", "Oversubscription", "Placement", "Deferral")}
    assert {name.partition("/")[2] for name in REGISTERED} == expected


VARIANTS = [
    *[(name, {}) for name in NAMES],
    *[
        (f"simulator.gym:{ENV_ID}", {"config": preset, "observation": observation, "actions": actions})
        for preset, observation, actions in product(
            ("train-text", "live-like", "compat"), ("obs-7", "obs-v2"), ("act-7", "act-multi")
        )
    ],
]


@pytest.mark.parametrize(("name", "words"), VARIANTS)
# The boxes of Oversubscription-v0 reach from -1 to 2, which the checker mentions.
@pytest.mark.filterwarnings("ignore:.*WARN.*:UserWarning")
def test_gymnasiums_checker_accepts_it(name: str, words: dict[str, str]) -> None:
    check_env(gymnasium.make(name, **words).unwrapped)


def assert_same(ours: Any, theirs: Any) -> None:
    """Compare an observation or an info of a single environment with a copy's."""
    if isinstance(ours, dict):
        for key in ours:
            assert_same(ours[key], theirs[key])
    else:
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def of_copy(stacked: Any, copy: int) -> Any:
    """Return what a vector environment gives for one copy."""
    if isinstance(stacked, dict):
        return {key: of_copy(value, copy) for key, value in stacked.items()}
    return stacked[copy]


def stepped(env: gymnasium.Env[Any, Any], action: Any) -> tuple[Any, Any, float, bool, bool]:
    observation, reward, over, cut, info = env.step(action)
    return observation, info, float(reward), over, cut


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", NAMES)
def test_copies_step_together_as_each_does_alone(name: str, mode: Literal["sync", "async"]) -> None:
    alone = [gymnasium.make(name) for _ in range(COPIES)]
    together = gymnasium.make_vec(name, num_envs=COPIES, vectorization_mode=mode)
    try:
        together.action_space.seed(SEED)
        seen, infos = together.reset(seed=SEED)
        expected: list[Any] = [(*env.reset(seed=SEED + copy), 0.0, False, False) for copy, env in enumerate(alone)]
        rewards, over, cut = np.zeros(COPIES), np.zeros(COPIES, bool), np.zeros(COPIES, bool)
        steps_left = STEPS_AFTER_AN_END
        while steps_left:
            for copy, (observation, info, reward, ends, is_cut) in enumerate(expected):
                assert_same(observation, of_copy(seen, copy))
                assert_same(info, of_copy(infos, copy))
                assert (rewards[copy], over[copy], cut[copy]) == (reward, ends, is_cut)
            steps_left -= steps_left < STEPS_AFTER_AN_END or bool((over | cut).any())
            actions = together.action_space.sample()
            expected = [
                # The step after an end is the reset.
                (*env.reset(), 0.0, False, False) if over[copy] or cut[copy] else stepped(env, actions[copy])
                for copy, env in enumerate(alone)
            ]
            seen, rewards, over, cut, infos = together.step(actions)
    finally:
        together.close()


def test_stable_baselines_trains_on_it() -> None:
    path = os.pathsep.join((str(distribution(STABLE_BASELINES)), str(ROOT)))
    printed = run(sys.executable, Path(__file__).with_name("train.py"), *NAMES, env=os.environ | {"PYTHONPATH": path})
    assert json.loads(printed) == dict.fromkeys(NAMES, 64)


@pytest.mark.parametrize("number", [0, 1], ids=["stable-baselines3", "one file"])
def test_the_examples_of_the_page_run(number: int, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "train" / "other-libraries.md").read_text("utf-8")
    program = tmp_path / "example.py"
    program.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[number], "utf-8")
    path = os.pathsep.join((str(distribution(STABLE_BASELINES)), str(ROOT)))
    assert run(sys.executable, program, "4096", "0", env=os.environ | {"PYTHONPATH": path}).startswith("cost $")
