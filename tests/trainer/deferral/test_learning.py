"""Training of deferral: labels, advantages, resumption, and the command (specification §5, §10.4)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from domain.errors import BadInput
from domain.rules.deferral.choosing import knapsack, ordered, packed
from domain.rules.deferral.jobs import jobs_of, objective
from simulator.deferral.scenarios import CALIBRATION_SEEDS, Episode, episode
from simulator.deferral.world import World, play
from trainer.deferral.exact import labels, outlook, outlook_of, prices, programme
from trainer.deferral.set_transformer import (
    METHODS,
    mean_capacity,
    preset,
    rewards_to_go,
    train,
)
from trainer.kit.checkpoint import Checkpoints, OtherConfiguration, check_resumable, weights_hash

TINY = {"environments": 2, "steps": 8, "evaluate_every": 1, "evaluation_episodes": 1, "price_draws": 1, "minibatch": 64}


def test_where_cores_are_plenty_they_cost_nothing_and_a_start_is_worth_its_lead_on_the_next_one() -> None:
    jobs = jobs_of([(2, 3, 0, 2, 0), (1, 1, 1, 1, 0)])
    price = prices(programme(jobs, 4), np.full(4, 50.0))
    np.testing.assert_allclose(price, 0.0, atol=1e-9)
    found = outlook(jobs, price).worths(jobs)
    # A step later the first job earns 2 less; at its latest start nothing comes after.
    np.testing.assert_allclose(found[0], [6.0 - 4.0, 4.0 - 2.0, 2.0])
    np.testing.assert_allclose(found[1, 0], 1.0)


def test_a_core_is_priced_where_two_jobs_want_it() -> None:
    jobs = jobs_of([(1, 2, 0, 0, 0), (1, 1, 1, 1, 0), (1, 1, 1, 1, 0)])
    price = prices(programme(jobs, 3), np.array([1.0, 1.0, 1.0]))
    assert price[1] == pytest.approx(1.0)
    # The first job would hold that core in its second step.
    np.testing.assert_allclose(outlook(jobs, price).worths(jobs)[0, 0], 2.0 - price[1])


def test_the_packing_by_the_optimum_s_prices_is_above_the_one_by_the_knapsack() -> None:
    made = episode("valley", CALIBRATION_SEEDS[0])
    worth = labels(made, 4, 4.0, np.random.default_rng(0))
    world = World(made)
    while not world.done:
        view = world.view()
        values = worth[view.cur.job, view.step - view.cur.earliest]
        world.step(knapsack(values, view.cur.cores, view.free))
    own, floor = (objective(made.jobs, start, made.capacity).total for start in (world.start, play(made, packed())))
    assert own > floor


@pytest.mark.parametrize("name", ["valley", "bursty"])
def test_what_is_lost_by_prices_is_what_the_total_falls_short_of_a_bound_that_no_policy_changes(name: str) -> None:
    made = episode(name, CALIBRATION_SEEDS[0])
    ahead = outlook_of(made)
    bounds = []
    for policy in (packed(), packed(alpha=0.9), ordered("fifo"), ordered("els")):
        world, lost = World(made), []
        while not world.done:
            view = world.view()
            chosen = policy(view)
            lost.append(ahead.lost(view, chosen))
            world.step(chosen)
        assert min(lost) > -1e-6
        bounds.append(objective(made.jobs, world.start, made.capacity).total + sum(lost))
    np.testing.assert_allclose(bounds, bounds[0])


def test_rewards_to_go_stop_at_an_end() -> None:
    rewards, dones = np.array([[1.0], [2.0], [4.0]]), np.array([[0.0], [1.0], [0.0]])
    np.testing.assert_allclose(rewards_to_go(rewards, dones, 0.5)[:, 0], [2.0, 2.0, 4.0])


def test_the_mean_capacity_is_that_of_training_episodes() -> None:
    assert 24.0 < mean_capacity(("valley",)) < 28.0
    assert mean_capacity(("valley", "dur1")) > mean_capacity(("valley",))


@pytest.mark.parametrize(
    ("field", "value"),
    [("method", "best"), ("decoding", "first"), ("rounds", -1), ("gamma", 0.0), ("evaluation_episodes", 41)],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(BadInput, match=field):
        preset("imitation", **{field: value})


@pytest.mark.exhaustive
def test_a_run_of_so_few_minutes_learns_one_update_and_says_that_it_goes_on(tmp_path: Path) -> None:
    config = preset("paper", method="mlp", iterations=3, **TINY)
    assert not train(config, checkpoints=Checkpoints(tmp_path), cpu_minutes=1e-6).complete


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", list(METHODS))
def test_resumed_after_every_update_a_run_comes_to_the_same_weights(method: str, tmp_path: Path) -> None:
    changes = {"iterations": 3} | ({"rounds": 2} if method in ("full", "aux-low") else {"rounds": 0})
    name = "imitation" if changes["rounds"] else "paper"
    config = preset(name, method=method, **{**TINY, **changes})
    whole, checkpoints = train(config), Checkpoints(tmp_path)
    found = train(config, checkpoints=checkpoints, cpu_minutes=1e-9 + 1e-6)
    times = 1
    while not found.complete:
        last = checkpoints.last()
        assert last is not None
        found = train(config, checkpoints=checkpoints, cpu_minutes=last.progress["cpu_s"] / 60.0 + 1e-6)
        times += 1
    assert times == config.updates
    assert weights_hash(found.weights) == weights_hash(whole.weights)
    assert found.best_total == whole.best_total


def test_a_run_whose_settings_name_no_device_is_resumed_on_the_processor_alone(tmp_path: Path) -> None:
    """As an earlier version wrote them."""
    config = preset("paper", method="mlp", iterations=1, **TINY)
    train(config, checkpoints=Checkpoints(tmp_path / "now"))
    last = Checkpoints(tmp_path / "now").last()
    assert last is not None
    settings = {name: value for name, value in last.config.items() if name != "device"}
    earlier = Checkpoints(tmp_path / "earlier")
    earlier.save(replace(last, config=settings), best=True)
    longer = replace(config, iterations=2)
    resumed, whole = train(longer, checkpoints=earlier), train(longer)
    assert weights_hash(resumed.weights) == weights_hash(whole.weights)
    with pytest.raises(OtherConfiguration) as refused:
        check_resumable(replace(last, config=settings), replace(config, device="cuda").plain(), tmp_path)
    assert refused.value.differences == (("device", "cpu", "cuda"),)


@pytest.mark.exhaustive
def test_the_optimum_s_own_starts_can_be_imitated() -> None:
    config = preset("imitation", labels="starts", rounds=1, iterations=0, **TINY)
    assert train(config).complete


@pytest.mark.exhaustive
def test_the_command_trains_exports_and_resumes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = [f"--set={name}={value}" for name, value in {**TINY, "rounds": 1, "iterations": 1}.items()]
    call = ["train", "deferral", "--seeds", "0-1", "--report-seeds", "2", "--out", str(out), *settings]
    runner = CliRunner()
    first = runner.invoke(app, call)
    assert first.exit_code == 0, first.output
    summary = json.loads((out / "summary.json").read_text())
    found = summary["variants"]["full-imitation"]
    assert (out / found["model"]).is_file()
    assert found["complete"] == [True, True]
    assert set(found["reports"]["valley"]) == {"prefix", "skip", "knapsack", "prefix, no waiting"}
    again = runner.invoke(app, call)
    assert again.exit_code != 0
    assert "--resume" in str(again.output) + str(again.exception)
    resumed = runner.invoke(app, [*call, "--resume", "--json"])
    assert resumed.exit_code == 0, resumed.output
    assert json.loads((out / "summary.json").read_text())["variants"]["full-imitation"]["reports"] == found["reports"]


def test_an_episode_of_no_jobs_is_priced() -> None:
    empty = Episode(jobs_of([]), np.full(5, 3), 0)
    assert labels(empty, 1, 1.0, np.random.default_rng(0)).shape == (0, 1)
