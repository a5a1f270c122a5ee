"""Predicted peaks: formulas against numpy, placements against a plain twin, and weeks that are placed by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.oversubscription.peaks import PeakPredictor, n_sigma_ratio, percentile_of
from simulator.oversubscription.peaks import PeakPlacer
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Placement
from tests.simulator.oversubscription.cases import invented, small
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import Task, policy_of


def test_n_sigma_is_mean_plus_deviations_of_the_ratio_of_hours_with_vms() -> None:
    used, requested = np.array([1.0, 3.0, 0.0, 2.0]), np.array([10.0, 10.0, 0.0, 5.0])
    ratios = np.array([0.1, 0.3, 0.4])
    expected = ratios.mean() + 2.0 * ratios.std(ddof=1)
    assert n_sigma_ratio(used, requested, 2.0) == pytest.approx(expected)
    assert n_sigma_ratio(used, requested, 50.0) == 1.0
    assert n_sigma_ratio(used[:1], requested[:1], 0.0) == 1.0


@pytest.mark.parametrize("percentile", [0.0, 37.0, 50.0, 95.0, 100.0])
def test_a_percentile_is_that_of_numpy(percentile: float) -> None:
    for size in (1, 2, 7):
        values = np.sort(np.random.default_rng(size).random(size))
        assert percentile_of(values, percentile) == pytest.approx(np.percentile(values, percentile))


def plain_peak(used: np.ndarray, week: Week, rows: list[int], t: int, predictor: PeakPredictor) -> float:
    """Return the peak of a machine with these VMs before hour t, by the definition."""
    if predictor.oracle:
        return float(used[rows, t : t + 24].sum(axis=0).max(initial=0.0))
    age = {row: t - int(week.arrival[row]) for row in rows}
    warm = [row for row in rows if age[row] >= predictor.warmup_h]
    cold = float(sum(week.cores[row] for row in rows if row not in warm))
    peaks = [0.0]
    if warm and predictor.deviations is not None:
        ratios = []
        for lag in range(1, predictor.window_h + 1):
            seen = [row for row in warm if age[row] >= lag]
            if seen:
                ratios.append(used[seen, t - lag].sum() / week.cores[seen].sum())
        ratio = min(1.0, np.mean(ratios) + predictor.deviations * np.std(ratios, ddof=1))
        peaks.append(ratio * float(week.cores[warm].sum()))
    if warm and predictor.percentile is not None:
        past = [used[row, max(t - predictor.window_h, int(week.arrival[row])) : t] for row in warm]
        peaks.append(float(sum(np.percentile(one, predictor.percentile) for one in past)))
    return cold + max(peaks)


def plainly(scenario: Scenario, week: Week, used: np.ndarray, predictor: PeakPredictor) -> np.ndarray:
    """Return the machine of each VM, by a loop over all machines for each request."""
    machine = np.full(len(week.ids), -1)
    for t in range(scenario.hours):
        present = [row for row in range(len(machine)) if machine[row] >= 0 and week.departure[row] > t]
        on = {k: [row for row in present if machine[row] == k] for k in range(scenario.machines)}
        peak = {k: plain_peak(used, week, on[k], t, predictor) for k in on}
        for row in np.flatnonzero((week.arrival == t) & (np.arange(len(machine)) >= week.warm)).tolist():
            c, best = float(week.cores[row]), (math.inf, -2)
            for k in on:
                free = scenario.threshold - peak[k] if on[k] else max(scenario.threshold, c)
                memory = scenario.machine_memory_gb - sum(week.memory_gb[other] for other in on[k])
                network = scenario.machine_network_gbps - sum(week.network_gbps[other] for other in on[k])
                rest = min(free - c, memory - week.memory_gb[row], network - week.network_gbps[row])
                if rest >= -1e-9:
                    best = min(best, (round(free, 9), k))
            machine[row] = best[1]
            if best[1] >= 0:
                on[best[1]].append(row)
                peak[best[1]] = plain_peak(used, week, on[best[1]], t, predictor)
    return machine


@pytest.mark.parametrize(
    "predictor",
    [
        PeakPredictor(deviations=1.5, window_h=4, warmup_h=2),
        PeakPredictor(percentile=80.0, window_h=6, warmup_h=3),
        PeakPredictor(deviations=2.0, percentile=60.0, window_h=5, warmup_h=2),
        PeakPredictor(oracle=True),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_vms_go_where_a_plain_twin_puts_them(predictor: PeakPredictor, seed: int) -> None:
    scenario, week = invented(seed, requests=80, machines=8)
    model = usage_of("gauss", scenario, week)
    placer = PeakPlacer(scenario, week, "cold", predictor)
    placed, used = placer.placement(model, seed), np.zeros((len(week.ids), scenario.hours))
    used[week.warm :] = placer.usage(model, seed)
    expected = plainly(scenario, week, used, predictor)
    assert placed.machine.tolist() == expected.tolist()
    assert placed.rejects == (expected == -2).sum()
    assert len(np.unique(placed.machine[placed.machine >= 0])) > 3


def test_the_oracle_is_never_hot_within_its_day() -> None:
    scenario, week = invented(3, requests=80, machines=20, hours=24)
    judged = judge(policy_of("peak:oracle=true"), Task(scenario, week), episodes=20)
    assert judged.sampled.hot_machine_hours.sum() == 0
    assert judge(policy_of("peak:percentile=0"), Task(scenario, week), episodes=20).sampled.hot_machine_hours.sum() > 0


def placed_by(folder: Path, text: str, rows: list[str]) -> Placement:
    scenario, week = small(folder, rows, horizon_h=8)
    return judge(policy_of(text), Task(scenario, week), episodes=1).placement


def test_a_young_vm_counts_with_its_request_and_an_older_one_with_its_usage(tmp_path: Path) -> None:
    # Threshold 6 of 10 cores; both VMs of subscriber 0 use about 0.2 of their 4 cores.
    rows = ["1,0,4,1,1,0,8,0", "2,0,4,1,1,{},8,0"]
    text = "peak:percentile=100,window_h=4,warmup_h=3"
    young = placed_by(tmp_path, text, [row.format(2) for row in rows])
    assert young.peak_machines == 2
    old = placed_by(tmp_path, text, [row.format(3) for row in rows])
    assert old.peak_machines == 1


def test_the_rate_is_what_the_machine_reserves_by_the_hour_in_shares_of_its_threshold(tmp_path: Path) -> None:
    placed = placed_by(tmp_path, "peak:n=0,window_h=2,warmup_h=2", ["1,0,4,1,1,0,4,0"])
    scenario, week = small(tmp_path, ["1,0,4,1,1,0,4,0"], horizon_h=8)
    placer = PeakPlacer(scenario, week, "cold", PeakPredictor(deviations=0.0))
    use = placer.usage(usage_of("gauss", scenario, week), 0)[0] / 4.0
    ratios = [1.0, 1.0, use[:2].mean(), use[1:3].mean()]
    assert placed.rate[0] == pytest.approx(np.mean(ratios) / scenario.beta)


def test_the_same_seed_meets_the_same_usage_whatever_the_policy() -> None:
    scenario, week = invented(5, requests=40, machines=40)
    one, other = (
        judge(policy_of(text), Task(scenario, week), usage="persistent", episodes=5)
        for text in ("peak:n=50,percentile=100", "peak:n=50,percentile=100,window_h=9")
    )
    assert one.sampled.hot_hours.tolist() == other.sampled.hot_hours.tolist()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("peak:window_h=4", "oracle"),
        ("peak:n=3,oracle=true", "oracle"),
        ("peak:n=-1", "n"),
        ("peak:percentile=101", "percentile"),
        ("peak:n=3,warmup_h=1", "warmup_h"),
        ("peak:n=3,window_h=4,warmup_h=5", "warmup_h"),
        ("peak:n=3,window_h=200", "window_h"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        policy_of(text)
    assert refused.value.field == field


def test_a_warm_start_is_refused() -> None:
    scenario, week = invented(1)
    with pytest.raises(BadInput) as refused:
        judge(policy_of("peak:n=3"), Task(scenario, week, "warm"), episodes=1)
    assert refused.value.field == "start"
