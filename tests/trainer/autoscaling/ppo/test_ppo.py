"""The algorithm: advantages, loss, one update, the loop, and that a run can be repeated and resumed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from domain.errors import BadInput
from tests.trainer.autoscaling.ppo.twin_worlds import SMALL, TwinWorlds
from trainer.autoscaling.ppo_lstm import FIGURES, PPOConfig, Training, train
from trainer.autoscaling.ppo_lstm import loss as loss_of
from trainer.autoscaling.ppo_runs import PRESETS, configuration
from trainer.kit.checkpoint import Checkpoints, OtherConfiguration
from trainer.kit.ppo import clipped_loss, divergence
from trainer.kit.progress import Progress

TINY = PPOConfig(
    hidden=8,
    environments=8,
    steps_per_update=12,
    minibatches=2,
    epochs=2,
    warm_steps=6,
    total_steps=8 * 12 * 6,
    evaluate_every_steps=8 * 12 * 2,
    selection_episodes=2,
    most_episode_steps=60,
    learning_rate=3e-3,
)


def minibatch(heads=1, choices=3, seed=0):
    """Experience of five copies by name, and the answer [T, M, A + 1] to the copies 4, 1 and 2."""
    generator = torch.Generator().manual_seed(seed)
    steps, batch, chosen = 4, 5, torch.tensor([4, 1, 2])
    logits = torch.randn(steps, batch, heads * choices, generator=generator)
    masks = torch.ones(steps, batch, heads, choices, dtype=torch.bool)
    actions = torch.randint(0, choices, (steps, batch, heads), generator=generator)
    log_probs = torch.log_softmax(logits.view(masks.shape), -1).gather(-1, actions[..., None]).sum((-1, -2))
    values = torch.randn(steps, batch, generator=generator)
    part = {"chosen": chosen, "actions": actions, "masks": masks, "log_probs": log_probs, "values": values}
    part |= {"returns": values + 1.0, "advantage": torch.randn(steps, len(chosen), generator=generator)}
    return part, torch.cat([logits, values.unsqueeze(-1)], -1)[:, chosen]


def loss(part, answer, *, value_clip=0.2, value_weight=0.5, entropy_weight=0.003):
    """The figures by their last names, and the gradient."""
    gradient = torch.full_like(answer, np.nan)
    arrays = (x.numpy() for x in (answer, *part.values(), gradient))
    found = loss_of(0.2, value_clip, value_weight, entropy_weight, *arrays)
    names = (name.partition("/")[2] for name in FIGURES)
    return SimpleNamespace(gradient=gradient, **dict(zip(names, found, strict=True)))


def test_at_the_policy_that_acted_the_loss_is_minus_the_mean_advantage() -> None:
    part, answer = minibatch(heads=2)
    found = loss(part, answer)
    assert found.policy == pytest.approx(-part["advantage"].mean().item(), abs=1e-6)
    assert found.value == pytest.approx(0.5)
    assert found.kl == pytest.approx(0.0, abs=1e-6)
    assert found.clipped == 0.0


def test_a_ratio_outside_the_clip_gains_nothing_more() -> None:
    part, answer = minibatch()
    part["advantage"] = torch.ones_like(part["advantage"])
    part["log_probs"] = part["log_probs"] - 1.0
    found = loss(part, answer, entropy_weight=0.0)
    assert found.policy == pytest.approx(-1.2)
    assert found.clipped == 1.0
    assert found.gradient[..., :-1].abs().max() == 0.0


def test_a_value_that_moved_far_is_held_back() -> None:
    part, answer = minibatch()
    answer[..., -1] += 1.0
    assert loss(part, answer).value == pytest.approx(0.5 * 0.8**2)
    assert loss(part, answer, value_clip=0.0).value == pytest.approx(0.0, abs=1e-6)


def test_a_masked_action_has_no_probability_no_entropy_and_no_gradient() -> None:
    part, answer = minibatch(choices=3)
    part["actions"] = part["actions"].clamp(max=1)
    flat = torch.zeros_like(answer)
    assert loss(part, flat).entropy == pytest.approx(np.log(3.0), abs=1e-6)
    part["masks"][..., 2] = False
    found = loss(part, flat)
    assert found.entropy == pytest.approx(np.log(2.0), abs=1e-6)
    assert found.gradient[..., 2].abs().max() == 0.0


@pytest.mark.parametrize("value_clip", [0.0, 0.2])
@pytest.mark.parametrize(("heads", "choices"), [(1, 7), (3, 4)])
def test_figures_and_gradient_are_those_of_plain_torch_in_64_bits(heads, choices, value_clip) -> None:
    part, answer = minibatch(heads, choices, seed=heads)
    answer += 0.3 * torch.randn(answer.shape, generator=torch.Generator().manual_seed(9))
    part["masks"] &= torch.rand(part["masks"].shape, generator=torch.Generator().manual_seed(8)) < 0.7
    part["masks"].scatter_(-1, part["actions"].unsqueeze(-1), True)
    found = loss(part, answer, value_clip=value_clip, entropy_weight=0.1)

    exact = answer.double().requires_grad_()
    of = {name: x if name == "advantage" else x[:, part["chosen"]] for name, x in part.items() if name != "chosen"}
    logits = exact[..., :-1].reshape(of["masks"].shape).masked_fill(~of["masks"], -1e9)
    log_all = torch.log_softmax(logits, -1)
    log_ratio = log_all.gather(-1, of["actions"].unsqueeze(-1)).sum((-1, -2)) - of["log_probs"]
    entropy = -(log_all.exp() * log_all).sum((-1, -2)).mean()
    policy = clipped_loss(of["advantage"].double(), log_ratio, 0.2)
    moved = exact[..., -1] - of["values"]
    near = of["values"] + (moved.clamp(-value_clip, value_clip) if value_clip else moved) - of["returns"]
    value = 0.5 * torch.max((exact[..., -1] - of["returns"]).square(), near.square()).mean()
    (policy + 0.5 * value - 0.1 * entropy).backward()
    expected = SimpleNamespace(policy=policy, value=value, entropy=entropy, kl=divergence(log_ratio))
    for name, figure in vars(expected).items():
        assert getattr(found, name) == pytest.approx(figure.item(), abs=1e-9), name
    assert found.clipped == pytest.approx(((log_ratio.exp() - 1).abs() > 0.2).double().mean().item())
    assert 0.0 < found.clipped < 1.0
    torch.testing.assert_close(found.gradient.double(), exact.grad, atol=1e-8, rtol=1e-6)


def run(config=TINY, make_worlds=None, **more):
    seen: list[Progress] = []
    make = {} if make_worlds is None else {"make_worlds": make_worlds}
    return train(config, task=SMALL, on_update=seen.append, **make, **more), seen


def test_the_same_configuration_and_seed_give_the_same_weights() -> None:
    one, seen = run()
    again, _ = run()
    other, _ = run(replace(TINY, seed=1))
    assert one.weights_hash == again.weights_hash != other.weights_hash
    assert [progress.update for progress in seen] == [1, 2, 3, 4, 5, 6]
    assert one.steps == TINY.total_steps
    assert one.best_cost == min(p.figures["held_out/greedy"] for p in seen if "held_out/greedy" in p.figures)


def test_training_in_the_plain_simulator_gives_the_same_weights() -> None:
    assert run()[0].weights_hash == run(make_worlds=TwinWorlds)[0].weights_hash


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"action_set": "act-multi", "observation": "obs-v2"},
        {"network": "mlp", "masked": False, "progress_reward": 1.0},
    ],
    ids=["lstm", "multi", "mlp-unmasked"],
)
def test_a_resumed_run_ends_with_the_same_weights_as_one_that_never_stopped(changes, tmp_path) -> None:
    config = replace(TINY, anneal_rate=False, **changes)
    whole, _ = run(config)
    kept = Checkpoints(tmp_path)
    run(replace(config, total_steps=config.total_steps // 3), checkpoints=kept)
    saved = kept.last()
    assert saved is not None
    assert saved.update == 2
    resumed, seen = run(config, resume=saved)
    assert seen[0].update == 3
    assert resumed.weights_hash == whole.weights_hash
    assert resumed.best_cost == whole.best_cost


def test_a_run_is_not_resumed_with_another_configuration(tmp_path) -> None:
    kept = Checkpoints(tmp_path)
    run(checkpoints=kept)
    with pytest.raises(OtherConfiguration) as refused:
        run(replace(TINY, gamma=0.5), resume=kept.last())
    assert refused.value.differences == (("gamma", 0.98, 0.5),)


def test_an_update_stops_when_the_policy_has_moved_far_enough() -> None:
    def minibatches(target_kl: float) -> float:
        training = Training(replace(TINY, target_kl=target_kl, learning_rate=0.05), task=SMALL)
        training.update()
        return training.update()["policy/minibatches"]

    assert minibatches(0.0) == 4
    assert minibatches(1e-6) < 4


def test_the_weight_of_the_entropy_is_whole_at_first_and_falls_when_it_is_to() -> None:
    runs = [
        Training(replace(TINY, entropy_coefficient=1.0, anneal_entropy=falls), task=SMALL) for falls in (False, True)
    ]
    for same in (True, False):
        for training in runs:
            training.update()
        weights = [training.network.policy.weight for training in runs]
        assert torch.equal(*weights) is same


def test_a_collapsed_policy_starts_over_from_the_best_weights_at_a_lower_rate() -> None:
    training = Training(TINY, task=SMALL)
    figures = training.update()
    training.judge(figures)
    best = {name: tensor.clone() for name, tensor in training.best_weights.items()}
    with torch.no_grad():
        training.network.policy.weight.zero_()
        training.network.policy.bias[0] = 50.0
    training.best_cost = 0.01
    rate = figures["rate/learning_rate"]
    collapsed = training.update()
    assert collapsed["policy/most_frequent_action"] == 1.0
    improved, note = training.judge(collapsed)
    assert not improved
    assert note.startswith("collapsed at cost")
    assert all(torch.equal(best[name], tensor) for name, tensor in training.network.state_dict().items())
    assert training.update()["rate/learning_rate"] < 0.5 * rate


def test_a_quiet_policy_that_is_as_good_as_any_has_not_collapsed() -> None:
    training = Training(TINY, task=SMALL)
    figures = training.update()
    training.judge(figures)
    figures |= {"policy/most_frequent_action": 0.99, "policy/entropy": 0.01}
    assert training.judge(figures) == (False, "")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"observation": "obs-8"}, "observation"),
        ({"environments": 10, "minibatches": 4}, "environments"),
        ({"gamma": 1.5}, "gamma"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_a_wrong_setting_is_named(changes, named) -> None:
    with pytest.raises(BadInput, match=named):
        replace(TINY, **changes)


def test_an_unknown_preset_task_or_field_names_what_there_is() -> None:
    with pytest.raises(BadInput, match="published"):
        configuration("publish")
    with pytest.raises(BadInput, match="train-fit"):
        Training(replace(TINY, task="train-fitt"))
    with pytest.raises(BadInput, match="learning_rate"):
        configuration(lr=1.0)


def test_the_published_preset_has_no_mask_and_the_published_network() -> None:
    published = PRESETS["ppo-lstm-published"]
    assert (published.masked, published.observation, published.action_set) == (False, "obs-7", "act-7")
    assert (published.network, published.hidden) == ("lstm", 128)


def test_a_run_passes_through_the_stages_of_its_task_and_resumes_in_the_later_one(tmp_path) -> None:
    first, second = SMALL.stages[0], replace(SMALL.stages[0], config=replace(SMALL.world, cooldown_s=300.0))
    staged = replace(SMALL, stages=(replace(first, until=0.4), second))
    training = Training(TINY, task=staged)
    stages = []
    for _ in range(6):
        training.update()
        stages.append(training.state()["counts"][2])
    assert stages == [0, 0, 0, 1, 1, 1]
    later = Training(TINY, task=staged)
    later.restore(training.state())
    assert later.update() == training.update()


def test_where_run_time_has_a_price_checkpoints_are_judged_with_it() -> None:
    runs = (Training(replace(TINY, time_price_per_minute=price)) for price in (0.0, 0.5))
    free, priced = (training.evaluate() for training in runs)
    steps = free["held_out/greedy_steps"]
    assert priced["held_out/greedy"] == pytest.approx(free["held_out/greedy"] + 0.5 * steps)
    assert priced["held_out/greedy_steps"] == steps
