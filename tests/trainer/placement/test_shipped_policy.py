"""The policy that ships is the one that its file says, and opens the hosts that its page says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from domain.rules.placement.mix import mix_of_instances
from domain.rules.placement.policies import BF, NAMED, Policy, parse_policy
from simulator.placement import engine, instances
from tests.architecture.product import ROOT
from trainer.placement.swarm import SELECTION, Samples, Valuation

FILE = ROOT / "agent/placement/shipped/tiers17a.json"


@pytest.fixture(scope="module")
def shipped() -> Policy:
    return parse_policy(json.loads(FILE.read_text("utf-8")), FILE.name)


TRAINED_ON = ("L219", "L157", "large-101", "large-103")


def test_it_was_trained_on_the_instances_that_it_names_and_on_no_test_shuffle(shipped: Policy) -> None:
    assert shipped.family == "tiers17a"
    assert shipped.training is not None
    assert shipped.training.instances == tuple(instances.digest_of(instances.instance_of(name)) for name in TRAINED_ON)
    assert min(shipped.training.shuffles) >= 10_000
    assert shipped.training.simulator == engine.VERSION
    assert shipped.training.mix == mix_of_instances([instances.instance_of(name) for name in TRAINED_ON])


def test_it_opens_fewer_hosts_than_best_fit(shipped: Policy) -> None:
    """Published: 277 of 290 in the given order. And a stream of small requests is not harmed."""
    for name, best, most in (("L219", 289, 271), ("L157", 290, 272), ("stream-0", 258, 256)):
        made = instances.instance_of(name)
        assert engine.play(made, BF).hosts == best
        assert engine.play(made, shipped).hosts == most


@pytest.mark.exhaustive
def test_its_value_comes_out_again(shipped: Policy) -> None:
    """On the 96 orders of the last choice: mean, its standard error, and the value with the price of the range."""
    assert shipped.training is not None
    known = [instances.instance_of(name) for name in TRAINED_ON]
    costs = Valuation(known, "tiers17a", Samples()).costs(np.array(shipped.theta), SELECTION)
    errors = [one.std(ddof=1) / np.sqrt(len(one)) for one in costs]
    assert np.mean(errors) == pytest.approx(shipped.training.standard_error)
    assert np.mean([one.mean() + 0.1 * np.ptp(one) for one in costs]) == pytest.approx(shipped.training.objective)


def test_the_vector_for_one_filling_comes_close_to_the_optimum(shipped: Policy) -> None:
    """265 hosts. Expecting one large request fewer than come leaves the last one without a reserve."""
    file = ROOT / "trainer/placement/shipped/tiers18a.json"
    filling = parse_policy(json.loads(file.read_text("utf-8")), file.name)
    assert filling.training is not None
    assert shipped.training is not None
    assert filling.training.instances == shipped.training.instances
    assert min(filling.training.shuffles) >= 10_000
    assert [engine.play(instances.instance_of(name), filling).hosts for name in ("L219", "L157")] == [266, 269]
    made, order = instances.instance_of("L219"), instances.shuffle_order(3000, 13)[None, :]
    short = Policy("short", filling.family, (*filling.theta[:17], 8.0 / 20.0 - 1.0))
    hosts = [engine.play_orders(made, policy, order)[0, 0] for policy in (filling, shipped, short)]
    assert hosts[0] <= 275
    assert hosts[0] < hosts[1] < hosts[2]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "mean"), [("L219", 272.18), ("L157", 272.66)])
def test_it_opens_few_hosts_in_any_order(shipped: Policy, name: str, mean: float) -> None:
    """Test shuffles 0 to 49: a mean of 274 at most, a range of 30, 18 between 5 and 95 % (placement §11, B4)."""
    made = instances.instance_of(name)
    orders = np.stack([instances.shuffle_order(3000, k) for k in range(50)])
    hosts = engine.play_orders(made, shipped, orders)[:, 0]
    assert hosts.mean() == pytest.approx(mean)
    assert np.ptp(hosts) <= 30
    assert np.percentile(hosts, 95) - np.percentile(hosts, 5) <= 18


def test_the_vector_for_small_pools_opens_fewer_hosts_than_worst_fit_where_it_was_not_trained() -> None:
    small = parse_policy(json.loads((FILE.parent / "small-pools.json").read_text("utf-8")))
    assert small.training is not None
    trained = [instances.instance_of(f"small-{seed}") for seed in range(101, 133)]
    assert small.training.instances == tuple(instances.digest_of(one) for one in trained)
    assert min(small.training.shuffles) >= 10_000
    order = np.array([range(30), *(instances.shuffle_order(30, k) for k in range(30))])
    hosts = {}
    for name, policy in (("small", small), ("wf", NAMED["wf"])):
        played = [engine.play_orders(instances.small(seed), policy, order) for seed in range(9000, 9012)]
        assert not any(one[:, 1].any() for one in played)
        hosts[name] = np.array([one[:, 0] for one in played])
    means = {name: found[:, 1:].mean().round(2) for name, found in hosts.items()}
    assert means == {"small": 16.33, "wf": 17.36}
    assert [int((found[:, 0] == 15).sum()) for found in hosts.values()] == [6, 4]
