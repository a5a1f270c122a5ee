"""Value decomposition: what is added up, what is masked, how risk is priced, and what is learnt (§4, A4 to A6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.oversubscription.risk import count_at_least
from simulator.oversubscription.scenario import scenario_of
from simulator.oversubscription.weekly import Assessor
from tests.trainer.oversubscription.small import staggered_pair
from trainer.kit.checkpoint import Checkpoints, OtherConfiguration, weights_hash
from trainer.kit.fields import changes_of
from trainer.oversubscription.c2marl import (
    Config,
    Learner,
    Targets,
    Transitions,
    ValueDecomposition,
    dual_factor,
    dual_ratio,
    dual_step,
    epsilon_of,
    loss_of,
    preset,
    published_bound,
    targets,
    train,
    weeks_of,
)

N, A = 3, 6
TINY = Config(episodes=8, copies=2, updates=5, batch=8, capacity=480, evaluate_every=4, hidden=(8,))


def network(seed: int = 0) -> ValueDecomposition:
    return ValueDecomposition(7 * N + 2, 9, N, A, (16, 16), seed)


def rows(mask: list[float], mask_next: list[float], *, done: float = 0.0, seed: int = 0) -> Transitions:
    draws = torch.Generator().manual_seed(seed)

    def of(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=draws)

    return Transitions(
        *(of(1, 7 * N + 2), of(1, N, 9), torch.tensor([mask]), torch.tensor([[1, 2, 3]]), of(1), of(1)),
        *(of(1, 7 * N + 2), of(1, N, 9), torch.tensor([mask_next]), torch.tensor([done]), of(1, N), of(1, N)),
    )


def test_the_joint_value_is_the_clusters_part_and_those_of_subscribers_with_requests() -> None:
    net, seen = network(), rows([1.0, 0.0, 1.0], [1.0, 1.0, 1.0])
    with torch.no_grad():
        sides = net.sides_of(seen.local)[0]
        wanted = net.value(seen.cluster)[0] + sides[0, 1] + sides[2, 3]
        found = loss_of(net, seen, Targets(wanted[None] + 2.0, torch.zeros(1, N)))
    assert float(found) == pytest.approx(4.0, rel=1e-4)


@pytest.mark.parametrize("off", range(N))
def test_a_masked_subscriber_receives_no_gradient(off: int) -> None:
    net, mask = network(), [1.0] * N
    mask[off] = 0.0
    seen = rows(mask, [1.0] * N)
    loss_of(net, seen, Targets(torch.tensor([5.0]), torch.zeros(1, N))).backward()  # type: ignore[no-untyped-call]
    for name, value in net.named_parameters():
        if name.startswith("sides"):
            assert value.grad is not None
            by_subscriber = value.grad.abs().sum(dim=(1, 2))
            assert [bool(total > 0) for total in by_subscriber] == [n != off for n in range(N)]


@pytest.mark.parametrize("off", range(N))
def test_a_subscriber_masked_in_the_next_hour_does_not_enter_the_target(off: int) -> None:
    mask_next = [1.0] * N
    mask_next[off] = 0.0
    online, target, seen = network(0), network(1), rows([1.0] * N, mask_next)
    before = targets(online, target, seen, 0.0, 0.0, 0.9).joint
    with torch.no_grad():
        for value in target.sides.parameters():
            value[off] += 7.0
    assert torch.equal(before, targets(online, target, seen, 0.0, 0.0, 0.9).joint)
    everyone = replace(seen, mask_next=torch.ones(1, N))
    assert float(targets(online, target, everyone, 0.0, 0.0, 0.9).joint) > float(before) + 1.0


def test_the_online_network_picks_and_the_target_network_rates() -> None:
    online, target, seen = network(0), network(1), rows([1.0] * N, [1.0] * N)
    with torch.no_grad():
        best = online.sides_of(seen.local_next)[0].argmax(dim=1)
        sides = target.sides_of(seen.local_next)[0]
        ahead = target.value(seen.cluster_next)[0] + sum(sides[n, best[n]] for n in range(N))
    wanted = float(seen.reward) + 3.0 * (0.5 - float(seen.cost)) + 0.9 * float(ahead)
    assert float(targets(online, target, seen, 3.0, 0.5, 0.9).joint) == pytest.approx(wanted, rel=1e-6)


def test_after_the_last_hour_nothing_is_looked_ahead_to() -> None:
    seen = rows([1.0] * N, [1.0] * N, done=1.0)
    found = targets(network(0), network(1), seen, 2.0, 0.25, 0.9).joint
    assert float(found) == pytest.approx(float(seen.reward) + 2.0 * (0.25 - float(seen.cost)))


@pytest.mark.parametrize("off", range(N))
def test_with_credit_each_subscriber_learns_from_its_own_part_alone(off: int) -> None:
    online, target, seen = network(0), network(1), rows([1.0] * N, [1.0] * N)
    before = targets(online, target, seen, 3.0, 0.0, 0.9).own
    with torch.no_grad():
        sides = target.sides_of(seen.local_next)[0]
        best = online.sides_of(seen.local_next)[0].argmax(dim=1)
    wanted = seen.own_reward[0, off] - 3.0 * seen.own_cost[0, off] + 0.9 * sides[off, best[off]]
    assert float(before[0, off]) == pytest.approx(float(wanted), rel=1e-5)
    seen.own_cost[0, off] += 1.0
    after = targets(online, target, seen, 3.0, 0.0, 0.9).own
    assert (before - after)[0].tolist() == pytest.approx([3.0 * (n == off) for n in range(N)], abs=1e-5)


def test_with_credit_a_masked_subscriber_receives_no_gradient_and_no_next_value() -> None:
    net, seen = network(), rows([1.0, 0.0, 1.0], [1.0, 1.0, 0.0])
    wanted = targets(net, network(1), seen, 0.0, 0.0, 0.9)
    assert float(wanted.own[0, 2]) == pytest.approx(float(seen.own_reward[0, 2]))
    loss_of(net, seen, wanted, own=True).backward()  # type: ignore[no-untyped-call]
    grads = [value.grad for name, value in net.named_parameters() if name.startswith("sides")]
    assert all(grad is not None and grad[1].abs().sum() == 0.0 and grad[0].abs().sum() > 0.0 for grad in grads)


def test_with_credit_the_clusters_part_still_learns_the_rest_of_the_joint_value() -> None:
    net, seen = network(), rows([1.0] * N, [1.0] * N)
    with torch.no_grad():
        own = net.sides_of(seen.local).gather(2, seen.actions[:, :, None])[:, :, 0]
        joint = net.value(seen.cluster) + own.sum(dim=1)
        found = loss_of(net, seen, Targets(joint + 2.0, own), own=True)
    assert float(found) == pytest.approx(4.0, rel=1e-4)


def test_the_price_of_risk_is_that_of_now_not_of_when_it_was_met() -> None:
    seen = rows([1.0] * N, [1.0] * N, done=1.0)
    cheap, dear = (float(targets(network(0), network(1), seen, price, 0.0, 0.9).joint) for price in (0.0, 10.0))
    assert cheap - dear == pytest.approx(10.0 * float(seen.cost), rel=1e-5)


@pytest.mark.parametrize("step", [dual_step, dual_factor, dual_ratio])
@given(
    price=st.floats(0.0, 100.0), rate=st.floats(0.01, 20.0), measured=st.floats(0.0, 1.0), allowed=st.floats(0.01, 0.99)
)
def test_lambda_rises_above_what_is_allowed_falls_below_it_and_stays_in_range(
    step: Callable[[float, float, float, float, float], float],
    price: float,
    rate: float,
    measured: float,
    allowed: float,
) -> None:
    after = step(price, rate, measured, allowed, 100.0)
    assert 0.0 <= after <= 100.0
    if measured > allowed:
        assert after >= price
    if measured < allowed:
        assert after <= price


def test_lambda_moves_by_rate_times_excess() -> None:
    assert dual_step(1.0, 2.0, 0.30, 0.05, 100.0) == pytest.approx(1.5)
    assert dual_step(1.0, 2.0, 0.00, 0.05, 100.0) == pytest.approx(0.9)


def test_lambda_by_a_factor_comes_back_as_fast_as_it_went() -> None:
    away = 3.0
    for _ in range(20):
        away = dual_factor(away, 0.1, 1.0, 0.05, 100.0)
    assert away == pytest.approx(3.0 * np.exp(2.0))
    for _ in range(20):
        away = dual_factor(away, 0.1, 0.0, 0.05, 100.0)
    assert away == pytest.approx(3.0)


def test_lambda_by_a_ratio_goes_up_for_twice_as_much_as_it_comes_down_for_half_as_much() -> None:
    up, down = dual_ratio(3.0, 0.08, 0.04, 0.02, 100.0), dual_ratio(3.0, 0.08, 0.01, 0.02, 100.0)
    assert up == pytest.approx(3.0 * 2.0 ** (0.08 / np.log(50.0)))
    assert up * down == pytest.approx(9.0)
    assert dual_ratio(3.0, 0.08, 1.0, 0.02, 100.0) == pytest.approx(3.0 * np.exp(0.08))
    assert dual_ratio(3.0, 0.08, 0.0, 0.02, 100.0) == pytest.approx(3.0 * np.exp(-0.08))
    assert dual_factor(3.0, 0.08, 0.04, 0.02, 100.0) < 3.0 * 1.002


@pytest.mark.parametrize(("alpha", "bound"), [(0.75, 0.00625), (0.85, 0.00375), (0.95, 0.00125)])
def test_the_published_bound(alpha: float, bound: float) -> None:
    assert published_bound(alpha, 3, 120) == pytest.approx(bound)


def test_exploration_falls_in_a_line_to_its_last_value() -> None:
    config = Config(episodes=100)
    assert [epsilon_of(config, at) for at in (0, 30, 60, 100)] == pytest.approx([1.0, 0.525, 0.05, 0.05])


def test_the_same_seed_gives_the_same_weights_and_another_one_others() -> None:
    scenario = staggered_pair()
    first, again, other = (train(replace(TINY, seed=seed), scenario=scenario) for seed in (3, 3, 4))
    assert first.weights_hash == again.weights_hash != other.weights_hash
    assert first.best == again.best


def test_a_run_that_stopped_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    scenario = staggered_pair()
    # Exploration depends on how many episodes there will be, so the whole run is described from the start.
    config = replace(TINY, epsilon_share=1e-9)
    whole = train(config, scenario=scenario)
    checkpoints = Checkpoints(tmp_path)
    train(replace(config, episodes=4), scenario=scenario, checkpoints=checkpoints)
    resumed = train(config, scenario=scenario, checkpoints=checkpoints)
    assert resumed.weights_hash == whole.weights_hash
    assert weights_hash(resumed.weights) == weights_hash(whole.weights)


def test_a_run_does_not_go_on_with_another_configuration(tmp_path: Path) -> None:
    scenario, checkpoints = staggered_pair(), Checkpoints(tmp_path)
    train(TINY, scenario=scenario, checkpoints=checkpoints)
    with pytest.raises(OtherConfiguration, match="gamma"):
        train(replace(TINY, gamma=0.5), scenario=scenario, checkpoints=checkpoints)


def test_the_dual_sees_the_chance_of_a_broken_week() -> None:
    learner = Learner(
        replace(TINY, copies=1, cost="analytic", dual="violations", dual_rate=1.0), staggered_pair(sd=0.3)
    )
    figures = learner.play()
    assert figures["risk/allowed"] == pytest.approx(0.05)
    wanted = count_at_least(learner.replay.cost[0].astype(np.float64), 3)
    assert wanted > 0.1
    assert figures["risk/estimate"] == pytest.approx(wanted, abs=1e-6)
    assert learner.price == pytest.approx(max(0.0, wanted - 0.05), abs=1e-6)


def test_redrawn_weeks_are_played_at_random_and_none_is_both_learnt_from_and_judged_on() -> None:
    scenario = scenario_of("azure_like")
    config = replace(TINY, scenario="azure_like", redrawn=3, validation=2)
    training, choice = weeks_of(config, scenario)
    hashes = [week.cores.tobytes() + week.arrival.tobytes() for week in (*training, *choice)]
    assert (len(training), len(choice), len(set(hashes))) == (4, 3, 6)
    learner = Learner(config, scenario)
    played = set()
    for _ in range(12):
        learner.batch.reset(np.arange(2), learner.drawing.integers(len(learner.batch.weeks), size=2))
        played |= {learner.batch.placement(i).week.requests for i in range(2)}
    assert played == {week.requests for week in training}
    assert [week.name for week in learner.choice] == ["s0", "unseen0", "unseen1"]


def test_the_price_steers_to_the_aim() -> None:
    learner = Learner(replace(TINY, copies=1, cost="analytic", dual="violations", aim=0.02), staggered_pair())
    assert learner.play()["risk/allowed"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"dual": "guess"}, {"gamma": 1.0}, {"episodes": 0}, {"cost": "none"}, {"lambda_start": 200.0}),
        *({"credit": "mine"}, {"redrawn": -1}, {"aim": 1.0}, {"lambda_start": 0.0}),
        {"dual_form": "ratio", "lambda_start": 0.0},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        preset("robust", **wrong)


def test_settings_as_text_are_read_as_what_they_are() -> None:
    changes = changes_of("--set", Config, {"gamma": "0.95", "hidden": "32+32", "averaged": "true", "batch": "64"})
    assert changes == {"gamma": 0.95, "hidden": (32, 32), "averaged": True, "batch": 64}
    with pytest.raises(BadInput, match="choose a field"):
        changes_of("--set", Config, {"gama": "0.9"})


@pytest.mark.exhaustive
def test_the_staggered_pair_is_learnt_jointly_and_safely() -> None:
    scenario = staggered_pair()
    alone = Assessor(scenario, scenario.week("s0"))
    assert alone.c_hot_r(np.array([0.4, 0.4])) < 0.05
    learnt = train(preset("robust", episodes=400, updates=120, evaluate_every=8), scenario=scenario)
    assert learnt.best.feasible
    assert learnt.best.sampled <= 0.05
    assert 1.0 - learnt.best.reserved >= 0.55
