"""Episodes: the plain twin, determinism, masks, sampled and analytic risk, usage models, state and restore (A3)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.observations.oversubscription import cluster_names, local_names
from domain.rules.oversubscription.risk import count_at_least
from simulator.gym.base import EpisodeVectorEnv
from simulator.oversubscription.batch import OversubscriptionBatch, OversubscriptionSimulation
from simulator.oversubscription.layout import guard_of
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.usage import normal, usage_of
from simulator.oversubscription.weekly import Assessor, sample
from tests.oracles.plain_oversubscription import play_plainly
from tests.simulator.oversubscription.cases import invented, small

INTERNAL = scenario_of("internal_like")
MODELS = ("gauss", "gauss_corr:rho=0.3", "persistent:psi=0.6,rho=0.2", "replay:seed=4")


@pytest.mark.exhaustive
@given(st.integers(0, 10_000), st.sampled_from(MODELS), st.sampled_from(["cold", "warm"]))
@settings(max_examples=40, deadline=None)
def test_the_compiled_simulator_and_the_plain_twin_agree(seed: int, usage: str, start: str) -> None:
    scenario, week = invented(seed)
    model = usage_of(usage, scenario, week)
    rates = np.random.default_rng(seed).choice([0.2, 0.33, 0.7, 1.0], (scenario.hours, 3))
    plain = play_plainly(scenario, week, rates, model, seed, start)
    simulation = OversubscriptionSimulation(scenario, week, start=start, usage=model)
    simulation.reset(seed)
    for t in range(scenario.hours):
        _, _, _, over, _, info = simulation.step_rates(rates[t])
        assert info["usage_cores"] == pytest.approx(plain.usage[t], abs=1e-9)
        if model.rho == 0.0:
            assert info["chances"] == pytest.approx(plain.chance[t], abs=1e-9)
    assert over
    placed, books = simulation.placement(), simulation.batch.books(0)
    assert [max(k, -1) for k in placed.machine.tolist()] == plain.machine
    assert (books["rejects"], books["peak"]) == (plain.rejects, plain.peak)
    assert books["saved"] == pytest.approx(plain.saved, abs=1e-9)


@pytest.mark.exhaustive
@given(st.integers(0, 10_000), st.sampled_from(MODELS))
@settings(max_examples=20, deadline=None)
def test_a_sampled_episode_is_the_one_the_environment_plays(seed: int, usage: str) -> None:
    scenario, week = invented(seed)
    model, rates = usage_of(usage, scenario, week), np.full((scenario.hours, 3), 0.3)
    simulation = OversubscriptionSimulation(scenario, week, start="warm", usage=model)
    simulation.reset(seed)
    machine_hours = sum(int(simulation.step_rates(row)[5]["hot"].sum()) for row in rates)
    drawn = sample(simulation.placement(), model, np.array([seed]))
    assert drawn.hot_hours.tolist() == [simulation.batch.books(0)["hot_hours"]]
    assert drawn.hot_machine_hours.tolist() == [machine_hours]
    risk = Assessor(scenario, week, start="warm", rho=model.rho).assess(rates)
    assert risk.placement.machine.tolist() == simulation.placement().machine.tolist()
    assert risk.expected_hot_hours == pytest.approx(simulation.batch.books(0)["expected_hot_hours"])


def test_normal_numbers_are_normal_and_so_are_their_tails() -> None:
    draws = np.array([normal(np.uint64(9), np.uint64(i)) for i in range(400_000)])
    assert abs(draws.mean()) < 5.0 / 632.0
    assert abs((draws**2).mean() - 1.0) < 5.0 * np.sqrt(2.0) / 632.0
    assert abs((draws**4).mean() - 3.0) < 5.0 * np.sqrt(96.0) / 632.0
    # 3.4426 is where the ziggurat's tail begins.
    for edge, share in ((1.0, 0.317311), (2.0, 0.0455003), (3.4426, 5.7611e-4)):
        assert abs((np.abs(draws) > edge).mean() - share) < 5.0 * np.sqrt(share / 400_000)


def test_equal_seeds_play_equal_episodes_to_the_last_bit() -> None:
    batch = OversubscriptionBatch(INTERNAL, ["s0", "s21"], 3, cost="both", observation="obs-o-ext")
    runs = []
    for _ in range(2):
        draws = np.random.default_rng(1)
        seen = [batch.reset(np.array([5, 5, 6]), np.array([0, 1, 0])).copy()]
        for _ in range(30):
            observed, reward, cost, _ = batch.step(draws.integers(0, 6, (1, 12)).repeat(3, axis=0))
            seen += [observed.copy(), reward.copy(), cost.copy(), batch.usage.copy()]
        runs.append(b"".join(array.tobytes() for array in seen))
    assert runs[0] == runs[1]
    assert np.array_equal(batch.local[0, :, :7], batch.local[2, :, :7])
    assert not np.array_equal(batch.usage[0], batch.usage[2])


def test_beliefs_without_a_guard_are_refused() -> None:
    with pytest.raises(BadInput, match="shield or filter"):
        guard_of(INTERNAL, "none", 0.01, posterior=True)


def test_a_state_put_back_goes_on_as_before() -> None:
    guard = guard_of(INTERNAL, "filter", 0.01, posterior=True)
    simulation = OversubscriptionSimulation(INTERNAL, "s0", usage="persistent", guard=guard, cost="sampled")
    simulation.reset(3)
    for _ in range(20):
        simulation.step([1] * 12)
    kept = simulation.state()
    ends = []
    for _ in range(2):
        simulation.restore(kept)
        assert simulation.hour == 20
        for _ in range(15):
            seen, *_, info = simulation.step([2] * 12)
        ends.append(seen.tobytes() + info["usage_cores"].tobytes() + simulation.placement().machine.tobytes())
    assert ends[0] == ends[1]
    with pytest.raises(BadInput, match="state"):
        OversubscriptionSimulation(INTERNAL, "s0").restore(kept)


def test_subscribers_without_requests_are_masked_and_their_action_changes_nothing(tmp_path: Path) -> None:
    scenario, week = small(tmp_path, ["1,0,4,8,1,0,3,0", "2,1,4,8,1,2,5,0"])
    answers = []
    for idle in (0, 5):
        simulation = OversubscriptionSimulation(scenario, week, cost="analytic")
        _, info = simulation.reset(0)
        masks, steps = [info["mask"].tolist()], []
        for t in range(6):
            action = [2 if masks[-1][0] else idle, 1 if masks[-1][1] else idle]
            seen, reward, cost, over, _, info = simulation.step(action)
            masks.append(info["mask"].tolist())
            steps.append((seen.tobytes(), reward, cost))
            assert over == (t == 5)
        assert masks == [[True, False], [False, False], [False, True], *[[False, False]] * 4]
        answers.append(steps)
    assert answers[0] == answers[1]
    unit = 8.0 / 6.0
    assert [reward for _, reward, _ in answers[0]] == pytest.approx([4 * 0.6 / unit, 0, 4 * 0.7 / unit, 0, 0, 0])


def test_the_observation_has_the_held_and_the_requested_cores(tmp_path: Path) -> None:
    scenario, week = small(tmp_path, ["1,0,4,8,1,0,3,0", "2,1,5,10,2,1,5,0"])
    simulation = OversubscriptionSimulation(scenario, week, observation="obs-o-ext", cost="analytic")
    seen, _ = simulation.reset(0)
    names = cluster_names(2, extended=True)
    assert len(seen) == len(names) == 19
    first = dict(zip(names, seen.tolist(), strict=True))
    assert (first["sub0.cpu_asked"], first["sub1.cpu_asked"], first["hour_cos"]) == (1.0, 0.0, 1.0)
    assert first["sub0.memory_asked"] == pytest.approx(10 * 8 / 160)
    seen, *_ = simulation.step([2, 2])
    second = dict(zip(names, seen.tolist(), strict=True))
    assert second["sub0.cpu_assigned"] == pytest.approx(10 * 1.6 / 40)
    assert second["sub0.cpu_requested"] == pytest.approx(10 * 4 / 40)
    assert second["sub0.network"] == pytest.approx(10 * 1 / 40)
    assert second["sub1.cpu_asked"] == pytest.approx(10 * 5 / 40)
    assert second["machines_used"] == 0.25
    own = dict(zip(local_names(extended=True), simulation.local()[0].tolist(), strict=True))
    assert own["cpu_assigned"] == second["sub0.cpu_assigned"]
    assert (own["vms"], own["usage_mean"]) == (0.25, pytest.approx(0.2, abs=1e-4))


def test_observations_of_a_week_are_finite_and_of_order_one() -> None:
    batch = OversubscriptionBatch(INTERNAL, ["s0"], 1, start="warm", observation="obs-o-ext")
    batch.reset(np.array([0]))
    for _ in range(120):
        seen, _, cost, over = batch.step(np.full((1, 12), 3))
        assert np.isfinite(seen).all()
        assert seen.min() >= -1.0
        assert seen.max() <= 2.0
        assert 0.0 <= cost[0] <= 1.0
    assert over[0]
    assert batch.step(np.full((1, 12), 3))[1:3] == (0.0, 0.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "rate", "points"), [("internal_like", 0.5, 0.03), ("azure_like", 1.0, 0.01)])
def test_sampled_and_analytic_risk_agree_on_two_thousand_weeks(name: str, rate: float, points: float) -> None:
    scenario = scenario_of(name)
    week = scenario.week("s0")
    risk = Assessor(scenario, week).assess(np.full(scenario.subscribers, rate))
    drawn = sample(risk.placement, usage_of("gauss", scenario, week), np.arange(2_000))
    assert drawn.c_hot_r == pytest.approx(risk.c_hot_r, abs=points)
    # The correction for skewness errs on the safe side where usage is cut off at 0 and 1.
    assert -0.1 <= drawn.hot_hours.mean() - risk.expected_hot_hours <= 0.05
    assert drawn.pm_hot_r <= drawn.c_hot_r <= drawn.c_hot_r_upper


def test_the_risk_of_a_week_is_the_count_over_its_hours() -> None:
    risk = Assessor(INTERNAL, INTERNAL.week("s0")).assess(np.full(12, 0.5))
    assert risk.c_hot_r == count_at_least(risk.by_hour, 3)
    assert 0.0 < risk.pm_hot_r < risk.c_hot_r
    assert risk.by_machine.shape == (120, 59)


def test_a_shared_part_makes_one_subscribers_vms_move_together() -> None:
    week = INTERNAL.week("s0")
    placement = Assessor(INTERNAL, week).assess(np.full(12, 0.5)).placement
    alone, together = (
        sample(placement, usage_of(usage, INTERNAL, week), np.arange(60)) for usage in ("gauss", "gauss_corr:rho=0.2")
    )
    assert together.hot_hours.mean() > 3.0 * alone.hot_hours.mean()
    inflated = Assessor(INTERNAL, week, rho=0.2).assess(np.full(12, 0.5))
    assert inflated.expected_hot_hours > 3.0 * Assessor(INTERNAL, week).assess(np.full(12, 0.5)).expected_hot_hours


def test_replay_repeats_one_week_of_usage() -> None:
    week = INTERNAL.week("s0")
    placement = Assessor(INTERNAL, week).assess(np.full(12, 0.4)).placement
    repeated = sample(placement, usage_of("replay", INTERNAL, week), np.arange(4))
    assert len(set(repeated.hot_hours.tolist())) == 1
    drawn = sample(placement, usage_of("gauss", INTERNAL, week), np.arange(4))
    assert len(set(drawn.hot_hours.tolist())) > 1


def test_measured_series_are_played_as_they_were(tmp_path: Path) -> None:
    scenario, week = small(tmp_path, ["1,0,10,8,1,0,6,0"], delta_count=2)
    (tmp_path / "usage.csv").write_text("id,hour,usage\n1,0,0.7\n1,1,0.5\n1,2,1.04\n1,5,0.6\n")
    model = usage_of(f"replay:{tmp_path / 'usage.csv'}", scenario, week)
    drawn = sample(Assessor(scenario, week).assess(np.ones(2)).placement, model, np.arange(3))
    # Hours 3 and 4 are a gap that is held at the 1.0 of hour 2; a machine is hot at 0.6, equality included.
    assert drawn.hot_hours.tolist() == [5, 5, 5]
    assert drawn.severity == pytest.approx((0.1 + 0.4 * 3) / 0.6 / 5)


@pytest.mark.parametrize("line", ["2,0,0.5", "1,6,0.5", "1,0.5,0.5", "1,0,1.06", "1,0,-0.1", "1,0,nan"])
def test_measured_series_that_cannot_be_are_refused_with_their_row(tmp_path: Path, line: str) -> None:
    scenario, week = small(tmp_path, ["1,0,10,8,1,0,6,0"])
    (tmp_path / "usage.csv").write_text(f"id,hour,usage\n1,0,0.7\n{line}\n")
    with pytest.raises(BadInput, match=r"usage\.csv: row 2: (id|hour|usage)"):
        usage_of(f"replay:{tmp_path / 'usage.csv'}", scenario, week)


def test_bootstrapped_days_hang_together(tmp_path: Path) -> None:
    scenario, week = small(tmp_path, ["1,0,10,8,1,0,48,0", "2,1,10,8,1,0,48,0"], horizon_h=48, delta_count=2)
    days = ["slice," + ",".join(f"s{i:03}" for i in range(288))]
    days += [f"low,{','.join(['5'] * 288)}", f"low,{','.join(['9'] * 288)}", f"high,{','.join(['30'] * 288)}"]
    days += [f"high,{','.join(['100'] * 144 + ['40'] * 144)}", f"rare,{','.join(['100'] * 288)}"]
    (tmp_path / "days.csv").write_text("\n".join(days))
    model = usage_of(f"bootstrap:{tmp_path / 'days.csv'}", scenario, week)
    assert model.moments.mean[:, 3] == pytest.approx([0.07, 0.65])
    assert model.moments.variance[1, 3] == pytest.approx(0.35**2)
    drawn = sample(Assessor(scenario, week, moments=model.moments).assess(np.ones(2)).placement, model, np.arange(200))
    # Each of the two days is hot for its first twelve hours, or not at all.
    assert set(drawn.hot_hours.tolist()) == {0, 12, 24}
    assert 80 <= (drawn.hot_hours == 12).sum() <= 120


READINGS = {"a": 1_000, "b": 3_000}
"""The usage of two VMs, in hundredths of a percent."""


def readings(file: Path, *, begin: float = 0.0, step: float = 300.0, count: int = 288, number: str = "{}") -> str:
    """Write two VMs' readings, and return the model of usage that reads them."""
    lines = [
        f"{vm},{number.format(round(begin + k * step))},{share}" for vm, share in READINGS.items() for k in range(count)
    ]
    file.write_text("\n".join(["vm_id,timestamp,avg_c", *lines]))
    return f"bootstrap:{file}"


@pytest.fixture
def two(tmp_path: Path) -> tuple[Scenario, Week]:
    return small(tmp_path, ["1,0,10,8,1,0,48,0", "2,1,10,8,1,0,48,0"], horizon_h=48, delta_count=2)


@pytest.mark.parametrize("begin", [0.0, 1_600_000_200.0])
def test_a_day_of_readings_counts_from_the_first_one_whatever_its_time(
    two: tuple[Scenario, Week], tmp_path: Path, begin: float
) -> None:
    model = usage_of(readings(tmp_path / "days.csv", begin=begin), *two)
    assert sorted(model.moments.mean.mean(axis=1).tolist()) == pytest.approx([0.1, 0.3])


def test_two_readings_fifty_years_apart_take_no_memory_for_what_is_between(
    two: tuple[Scenario, Week], tmp_path: Path
) -> None:
    text = readings(tmp_path / "days.csv", begin=1_600_000_200.0)
    with (tmp_path / "days.csv").open("a") as file:
        file.write("\n" + "\n".join(f"a,{1_600_000_200 - 50 * 365 * 86_400 + k},1000" for k in (0, 300)))
    tracemalloc.start()
    assert usage_of(text, *two).moments.mean.shape == (2, 24)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"begin": 1_600_000_200_000.0, "step": 300_000.0}, "timestamp has 1600000200000"),
        ({"step": 300_000.0}, "readings of a VM are 300000 apart"),
        ({"step": 3_600.0}, "readings of a VM are 3600 apart"),
        ({"number": "'{}s'"}, "timestamp has \"'0s'\""),
        ({"count": 0}, "it has no row"),
    ],
)
def test_readings_whose_times_are_no_seconds_are_refused_with_the_value(
    two: tuple[Scenario, Week], tmp_path: Path, given: dict[str, Any], part: str
) -> None:
    with pytest.raises(BadInput) as refused:
        usage_of(readings(tmp_path / "days.csv", **given), *two)
    assert refused.value.field == "usage"
    assert part in refused.value.remedy


def test_a_table_of_days_with_a_text_among_its_numbers_is_refused_with_column_and_value(
    two: tuple[Scenario, Week], tmp_path: Path
) -> None:
    days = ["slice," + ",".join(f"s{i:03}" for i in range(288)), "a," + ",".join(["low"] + ["5"] * 287)]
    (tmp_path / "days.csv").write_text("\n".join([*days, "b," + ",".join(["5"] * 288)]))
    with pytest.raises(BadInput, match="s000 has 'low'"):
        usage_of(f"bootstrap:{tmp_path / 'days.csv'}", *two)


@pytest.mark.parametrize(
    "text",
    [
        *("uniform", "gauss:rho=1", "gauss_corr:rho=1.5", "gauss_corr:rho=x", "persistent:psi=0.8,rho=0.3"),
        *("replay:seed=-1", "replay:nowhere.csv", "bootstrap", "bootstrap:nowhere.csv"),
    ],
)
def test_what_is_no_usage_model_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        usage_of(text, INTERNAL, INTERNAL.week("s0"))


def test_wrong_actions_and_seeds_are_refused() -> None:
    batch = OversubscriptionBatch(INTERNAL, ["s0"], 2)
    batch.reset(np.arange(2))
    for actions in (np.zeros((2, 11), int), np.full((2, 12), 6), np.full((2, 12), -1), np.zeros((2, 12))):
        with pytest.raises(BadInput, match="actions"):
            batch.step(actions)
    for rate in (0.0, 1.1, np.nan):
        with pytest.raises(BadInput, match="rates"):
            batch.step_rates(np.full((2, 12), rate))
    with pytest.raises(BadInput, match="seeds"):
        batch.reset(np.arange(3))
    with pytest.raises(BadInput, match="week_index"):
        batch.reset(np.arange(2), np.array([0, 1]))
    for options in ({"cost": "none"}, {"observation": "obs-7"}, {"start": "hot"}, {"usage": "none"}):
        with pytest.raises(BadInput):
            OversubscriptionBatch(INTERNAL, ["s0"], 1, **options)


def test_the_environment_is_a_gymnasium_environment(tmp_path: Path) -> None:
    scenario, _ = small(tmp_path, ["1,0,4,8,1,0,3,0", "2,1,4,8,1,2,5,0"])
    made = gymnasium.make("simulator.gym:Trimtab/Oversubscription-v0", scenario=scenario)
    seen, info = made.reset(seed=3)
    assert seen.shape == (16,)
    assert info["mask"].tolist() == [True, False]
    ends = [made.step(np.array([0, 0]))[2] for _ in range(6)]
    assert ends == [False] * 5 + [True]


def test_the_vector_environment_does_what_gymnasiums_row_of_single_ones_does(tmp_path: Path) -> None:
    scenario, _ = small(tmp_path, ["1,0,4,8,1,0,3,0", "2,1,4,8,1,2,5,0"])
    name = "simulator.gym:Trimtab/Oversubscription-v0"
    many = gymnasium.make_vec(name, num_envs=2, scenario=scenario)
    row = gymnasium.make_vec(name, num_envs=2, vectorization_mode="sync", scenario=scenario)
    assert isinstance(many.unwrapped, EpisodeVectorEnv)
    assert (many.observation_space, many.action_space) == (row.observation_space, row.action_space)
    np.testing.assert_array_equal(many.reset(seed=3)[0], row.reset(seed=3)[0])
    ends = []
    for _ in range(6):
        taken = np.array([[1, 0], [0, 1]])
        *ours, infos = many.step(taken)
        *theirs, their_infos = row.step(taken)
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other)
        for key in ("cost", "mask", "local", "hour", "hot"):
            np.testing.assert_array_equal(infos[key], their_infos[key])
        ends.append(ours[2].tolist())
    assert ends == [[False] * 2] * 5 + [[True] * 2]
    seen, reward, over, _, infos = many.step(np.zeros((2, 2), dtype=np.int64))
    assert (reward.tolist(), over.tolist(), infos["hour"].tolist()) == ([0.0, 0.0], [False, False], [0, 0])
    np.testing.assert_array_equal(seen, many.reset(seed=5)[0])
