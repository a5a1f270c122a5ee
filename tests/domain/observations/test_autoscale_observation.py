"""obs-7 and obs-v2 hold the formulas of the autoscaler specification, §3."""

import ast
import inspect
import textwrap
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.observations import autoscaling
from domain.observations.autoscaling import (
    OBS7_FEATURES,
    OBS7_NAMES,
    OBS7_VERSION,
    OBS_V2_VERSION,
    next_removal_share,
    obs7,
    obs_v2,
    obs_v2_features,
    obs_v2_names,
    schema_hash,
    waiting_recent_fifo,
)

EMPTY = np.empty(0)
shares = st.lists(st.floats(0.0, 1.0), max_size=40).map(lambda values: np.array(values, dtype=np.float64))


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_obs7_is_worked_out_by_hand_for_three_machines() -> None:
    cpu = np.array([0.5, 1.0, 0.25])
    ram = np.array([0.1, 0.4, 0.2])
    seven = obs7(14, 140, cpu, ram, waiting=30, submitted=120, waiting_recent=20, submitted_recent=50)
    # rank 0.9 * 2 = 1.8: 0.5 + 0.8 * (1.0 - 0.5) and 0.2 + 0.8 * (0.4 - 0.2)
    expected = np.array([0.1, 1.75 / 3, 0.9, 0.7 / 3, 0.36, 0.25, 0.4], dtype=np.float32)
    assert seven.dtype == np.float32
    np.testing.assert_allclose(seven, expected, rtol=0, atol=1e-7)


def test_empty_denominators_and_empty_fleets_give_zero() -> None:
    assert obs7(0, 0, EMPTY, EMPTY, 0, 0, 0, 0).tolist() == [0.0] * 7


def test_one_machine_is_its_own_percentile() -> None:
    seven = obs7(2, 140, np.array([0.625]), np.array([0.125]), 0, 0, 0, 0)
    assert seven[1:5].tolist() == [0.625, 0.625, 0.125, 0.125]


@given(shares, shares, st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 500), st.integers(0, 500))
def test_obs7_stays_in_its_ranges_and_does_not_depend_on_machine_order(
    cpu: np.ndarray, ram: np.ndarray, waiting: int, submitted: int, waiting_recent: int, recent: int
) -> None:
    seven = obs7(20, 140, cpu, ram, waiting, submitted, waiting_recent, recent)
    for value, feature in zip(seven, OBS7_FEATURES, strict=True):
        assert feature.low <= value <= feature.high
    turned = obs7(20, 140, cpu[::-1].copy(), ram[::-1].copy(), waiting, submitted, waiting_recent, recent)
    assert turned.tobytes() == seven.tobytes()


@given(shares.filter(lambda values: values.size > 0))
def test_p90_is_numpys_linear_percentile(cpu: np.ndarray) -> None:
    seven = obs7(0, 1, cpu, EMPTY, 0, 0, 0, 0)
    assert seven[2] == pytest.approx(np.percentile(cpu, 90.0), abs=1e-6)
    assert seven[1] == pytest.approx(np.mean(cpu), abs=1e-6)


def test_waiting_recent_counts_the_youngest_jobs_of_the_queue() -> None:
    assert waiting_recent_fifo(waiting=7, submitted_recent=50) == 7
    assert waiting_recent_fifo(waiting=70, submitted_recent=50) == 50


def test_obs_v2_appends_three_entries_per_type_and_four_of_the_fleet() -> None:
    seven = np.arange(7, dtype=np.float32) / 10
    vector = obs_v2(
        seven,
        ready_counts=ints(2, 1),
        booting_counts=ints(1, 0),
        limits=ints(10, 4),
        cooldown_remaining_s=np.array([150.0, 0.0]),
        cooldown_length_s=300.0,
        waiting=1000,
        queued_core_s=36_000.0,
        max_cores=100,
        oldest_wait_s=900.0,
        busy_lost_share=0.125,
    )
    expected = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.2, 0.1, 0.5, 0.25, 0.0, 0.0, 1.0, 0.1, 0.25, 0.125]
    np.testing.assert_allclose(vector, np.array(expected, dtype=np.float32), rtol=0, atol=1e-7)
    assert obs_v2_names(2)[7:] == (
        "type0.ready_ratio",
        "type0.booting_ratio",
        "type0.cooldown_ratio",
        "type1.ready_ratio",
        "type1.booting_ratio",
        "type1.cooldown_ratio",
        "waiting_log",
        "queued_fleet_hours",
        "oldest_wait",
        "busy_lost_share",
    )


def test_obs_v2_without_cooldown_or_limits_gives_zero_there() -> None:
    vector = obs_v2(np.zeros(7, dtype=np.float32), ints(0), ints(0), ints(0), np.array([50.0]), 0.0, 0, 9.0, 0, 0, 0)
    assert vector.tolist() == [0.0] * 14


@given(st.floats(0, 1e9), st.floats(0, 1e12), st.floats(0, 1e9), st.floats(0, 1e4), st.floats(0, 5))
def test_obs_v2_is_clipped_to_its_documented_ranges(
    waiting: float, queued: float, oldest: float, cooldown: float, lost: float
) -> None:
    vector = obs_v2(
        np.ones(7, dtype=np.float32),
        ints(9),
        ints(9),
        ints(4),
        np.array([cooldown]),
        300.0,
        waiting,
        queued,
        4,
        oldest,
        lost,
    )
    for value, feature in zip(vector, obs_v2_features(1), strict=True):
        assert feature.low <= value <= feature.high


def test_the_next_removal_is_the_largest_type_above_its_minimum() -> None:
    cores, minimum, victims = ints(2, 4, 8), ints(1, 0, 0), np.array([2.0, 1.0, 4.0])
    assert next_removal_share(cores, ints(1, 1, 1), minimum, victims, 10.0) == 0.4
    assert next_removal_share(cores, ints(1, 1, 0), minimum, victims, 10.0) == 0.1
    assert next_removal_share(cores, ints(1, 0, 0), minimum, victims, 10.0) == 0.0
    assert next_removal_share(cores, ints(1, 1, 1), minimum, victims, 0.0) == 0.0


def test_the_schema_hash_changes_with_names_order_and_version() -> None:
    base = schema_hash(OBS7_NAMES, OBS7_VERSION)
    assert base == "cad7837c7b3e464e0054d62a626b6177ff017694fb6272c18012870f9369a42d"
    assert (
        schema_hash(obs_v2_names(3), OBS_V2_VERSION)
        == "9f5826ad4118e7510c02d57d73bc8fe291a4bebfdfffadec24263446299dd48c"
    )
    assert schema_hash(OBS7_NAMES[::-1], OBS7_VERSION) != base
    assert schema_hash(OBS7_NAMES, "obs-7/2") != base


@pytest.mark.parametrize("leaf", [obs7, obs_v2, next_removal_share, waiting_recent_fifo])
def test_a_leaf_calls_no_other_plain_function(leaf: Callable[..., object]) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(leaf)))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    plain = {name for name, value in vars(autoscaling).items() if inspect.isfunction(value)}
    assert called & plain == set()
