"""The policy that ships is the one that its file says, and opens the hosts that its page says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from domain.rules.placement.policies import BF, Policy, parse_policy
from simulator.placement import engine, instances
from tests.architecture.product import ROOT
from trainer.placement.samples import Samples, Valuation
from trainer.placement.search import SELECTION

FILE = ROOT / "agent/placement/shipped/tiers17a.json"


@pytest.fixture(scope="module")
def shipped() -> Policy:
    return parse_policy(json.loads(FILE.read_text("utf-8")), FILE.name)


def test_it_was_trained_on_the_instance_that_it_names_and_on_no_test_shuffle(shipped: Policy) -> None:
    assert shipped.family == "tiers17a"
    assert shipped.training is not None
    assert shipped.training.instances == (instances.digest_of(instances.large(219)),)
    assert min(shipped.training.shuffles) >= 10_000
    assert shipped.training.simulator == engine.VERSION


def test_it_opens_fewer_hosts_than_best_fit(shipped: Policy) -> None:
    """Published: 277 of 290 in the given order. And a stream of small requests is not harmed."""
    for name, best, most in (("L219", 289, 274), ("L157", 290, 273), ("stream-0", 258, 256)):
        made = instances.instance_of(name)
        assert engine.play(made, BF).hosts == best
        assert engine.play(made, shipped).hosts == most


@pytest.mark.exhaustive
def test_its_value_comes_out_again(shipped: Policy) -> None:
    """On the 96 orders of the last choice: mean, its standard error, and the value with the price of the range."""
    assert shipped.training is not None
    valuation = Valuation([instances.large(219)], "tiers17a", Samples(), 2)
    (costs,) = valuation.costs(np.array(shipped.theta), SELECTION)
    assert costs.std(ddof=1) / np.sqrt(len(costs)) == pytest.approx(shipped.training.standard_error)
    assert costs.mean() + 0.3 * np.ptp(costs) == pytest.approx(shipped.training.objective)
