"""The clairvoyant bound is below every policy, and its plan is one (autoscaler specification §9.5, §18)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_fit, train_rand, train_text
from trainer.autoscaling.baselines.clairvoyant import Unavailable, grid_of, solve
from trainer.autoscaling.policies import run_policy
from trainer.autoscaling.policy_names import policy_of

FIXED_BOOT = preset("train-text", boot_low_s=71.0, boot_high_s=71.0)
DRAWN_BOOT = preset("train-text")
RIVALS = (
    "nothing",
    "fixed-ramp:cores=40",
    "queue-rule:horizon_s=240,idle_s=0",
    "queue-rule:horizon_s=60,idle_s=0",
    "random:seed=1,multi=true",
)
RIVALS_SINGLE = (
    "nothing",
    "fixed-ramp:cores=22,single=true",
    "queue-rule:horizon_s=120,idle_s=0,single=true",
    "random:seed=1",
    "random:seed=2,masked=true",
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("trace", "single", "published", "bound"),
    [
        (train_text(), False, 18.99, 18.9864),
        (train_text(), True, 19.15, 19.1464),
        (train_fit(), False, 4.70, 4.6902),
        (train_fit(), True, 4.83, 4.8219),
    ],
)
def test_the_bounds_are_the_published_ones(trace: Trace, single: bool, published: float, bound: float) -> None:
    relaxed = solve(FIXED_BOOT, trace, single=single, relaxed=True)
    assert relaxed.bound == pytest.approx(bound, abs=5e-4)
    assert relaxed.bound == pytest.approx(published, abs=0.011)


@pytest.mark.exhaustive
@pytest.mark.parametrize("single", [False, True])
def test_without_knowing_the_boot_times_the_bound_is_lower(single: bool) -> None:
    for trace in (train_text(), train_fit()):
        drawn = solve(DRAWN_BOOT, trace, single=single, relaxed=True).bound
        assert drawn < solve(FIXED_BOOT, trace, single=single, relaxed=True).bound
        rivals = RIVALS_SINGLE if single else RIVALS
        assert drawn < min(run_policy(policy_of(text), DRAWN_BOOT, trace, 1).cost for text in rivals)


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None)
@given(
    trace=st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from([1.0, 30.0, 45.0, 61.5, 200.0]), st.sampled_from([1, 1, 2])),
        min_size=1,
        max_size=25,
    ).map(
        lambda rows: make_trace("odd", [r[0] for r in rows], [r[1] for r in rows], width=[r[2] for r in rows]),
    ),
    boot=st.sampled_from([(71.0, 71.0), (45.0, 97.0), (30.0, 30.0)]),
    waiting_price=st.sampled_from([0.036, 3.6]),
    initial=st.sampled_from([(1, 1, 1), (3, 0, 0), (1, 0, 2)]),
)
def test_no_policy_costs_less_than_the_bound(
    trace: Trace, boot: tuple[float, float], waiting_price: float, initial: tuple[int, ...]
) -> None:
    config = SimulationConfig(
        boot_low_s=boot[0], boot_high_s=boot[1], waiting_price_per_hour=waiting_price, initial=initial
    )
    for single, rivals in ((False, RIVALS), (True, RIVALS_SINGLE)):
        bound = solve(config, trace, single=single, relaxed=True).bound
        costs = {text: run_policy(policy_of(text), config, trace, 7).cost for text in rivals}
        assert bound <= min(costs.values()) + 1e-7, costs


@pytest.mark.exhaustive
def test_a_coarser_grid_serves_where_lengths_vary_and_its_bound_holds_too() -> None:
    trace = train_rand(3)
    assert grid_of(FIXED_BOOT, trace).offsets == (0.0,)
    bound = solve(FIXED_BOOT, trace, single=False, relaxed=True).bound
    assert 0.0 < bound < min(run_policy(policy_of(text), FIXED_BOOT, trace).cost for text in RIVALS)


def test_whole_vms_bound_more_tightly_than_fractions() -> None:
    trace = make_trace("small", [0.0] * 30 + [600.0] * 10, [120.0] * 40)
    whole = solve(FIXED_BOOT, trace, single=True, time_limit_s=20.0)
    assert whole.proven
    assert solve(FIXED_BOOT, trace, single=True, relaxed=True).bound < whole.bound <= whole.cost + 1e-6
    assert whole.fleet.shape == (12, 3)


@pytest.mark.exhaustive
def test_the_fleet_found_obeys_one_action_a_minute_and_the_limits() -> None:
    trace = make_trace("small", [0.0] * 60 + [600.0] * 10, [240.0] * 70)
    fleet = solve(FIXED_BOOT, trace, single=True, time_limit_s=10.0).fleet
    changes = np.diff(np.vstack([FIXED_BOOT.initial, fleet]), axis=0)
    assert np.abs(changes).sum(axis=1).max() == 1
    assert fleet[:, 0].min() >= 1
    assert fleet.max() <= 10


@pytest.mark.parametrize(
    ("config", "trace", "words"),
    [
        (preset("paper-live"), train_fit(), "a cool-down"),
        (preset("live-like"), train_fit(), "drain"),
        (FIXED_BOOT, coevolution(0), "released by others, jobs that take whole VMs"),
        (FIXED_BOOT, make_trace("long", [0.0, 20_000.0], [60.0, 60.0]), "300 minutes"),
        (FIXED_BOOT, make_trace("none", [], []), "without jobs"),
        (FIXED_BOOT, make_trace("all differ", np.arange(900.0), np.linspace(60.0, 9000.0, 900)), "lengths of jobs"),
    ],
)
def test_a_world_or_trace_beyond_the_model_is_said_to_be(config: SimulationConfig, trace: Trace, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        solve(config, trace, single=True)


def test_the_grid_holds_every_start_where_lengths_are_common() -> None:
    assert grid_of(FIXED_BOOT, train_text()).offsets == (0.0, 11.0)
    fitted = grid_of(FIXED_BOOT, train_fit())
    assert fitted.offsets == (0.0, 11.0, 15.0, 26.0, 30.0, 41.0, 45.0, 56.0)
    # The one job of a second would double the instants; it is taken for none at all.
    assert (fitted.duration(45.0), fitted.duration(1.0)) == (45.0, 0.0)


@settings(max_examples=100, deadline=None)
@given(start=st.floats(0, 1e5), length=st.floats(0.001, 1e4), seed=st.integers(0, 3))
def test_rounding_down_keeps_the_order_on_a_core(start: float, length: float, seed: int) -> None:
    trace = (train_text(), train_fit(), train_rand(1), make_trace("odd", [7.0, 21.0], [61.5, 3.0]))[seed]
    grid = grid_of(FIXED_BOOT, trace)
    for duration in (length, *np.unique(trace.service_s)[:3].tolist()):
        ends = float(grid.floored(start)) + grid.duration(duration)
        assert float(grid.floored(start + duration)) >= ends - 1e-5
        assert float(grid.floored(ends + 1e-7)) == pytest.approx(ends, abs=1e-5)
