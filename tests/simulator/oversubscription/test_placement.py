"""Where VMs go: best fit, ties, memory and network, departures first, fractions, warm starts, rejects (A1, A2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.weekly import Assessor, Placement
from tests.simulator.oversubscription.cases import small


def placed(folder: Path, rows: list[str], rate: float = 1.0, start: str = "cold", **changes: Any) -> Placement:
    scenario, week = small(folder, rows, **changes)
    return Assessor(scenario, week, start=start).assess(np.full(scenario.subscribers, rate)).placement


def test_a_vm_goes_where_it_leaves_the_least_room(tmp_path: Path) -> None:
    rows = ["1,0,8,1,0,0,9,0", "2,0,6,1,0,0,9,0", "3,0,3,1,0,1,9,0", "4,0,2,1,0,1,9,0", "5,0,5,1,0,2,9,0"]
    assert placed(tmp_path, rows).machine.tolist() == [0, 1, 1, 0, 2]


def test_ties_go_to_the_lowest_index(tmp_path: Path) -> None:
    rows = ["1,0,6,1,0,0,9,0", "2,0,6,1,0,0,9,0", "3,0,2,1,0,1,9,0", "4,0,2,1,0,1,9,0"]
    assert placed(tmp_path, rows).machine.tolist() == [0, 1, 0, 0]


def test_requests_of_an_hour_are_placed_in_the_order_of_their_ids(tmp_path: Path) -> None:
    rows = ["9,0,6,1,0,0,9,0", "2,0,7,1,0,0,9,0"]
    answer = placed(tmp_path, rows)
    assert answer.week.ids.tolist() == [2, 9]
    assert answer.machine.tolist() == [0, 1]


def test_memory_and_network_send_a_vm_elsewhere(tmp_path: Path) -> None:
    rows = ["1,0,1,39,0,0,9,0", "2,0,1,2,9.5,0,9,0", "3,0,1,1,1,0,9,0", "4,0,1,2,1,0,9,0"]
    assert placed(tmp_path, rows).machine.tolist() == [0, 1, 0, 2]


def test_departures_come_before_arrivals_of_the_same_hour(tmp_path: Path) -> None:
    rows = ["1,0,10,1,0,0,2,0", "2,0,10,1,0,1,3,0", "3,0,10,1,0,2,4,0"]
    answer = placed(tmp_path, rows)
    assert answer.machine.tolist() == [0, 1, 0]
    assert answer.peak_machines == 2


def test_fractions_of_cores_are_reserved_without_rounding(tmp_path: Path) -> None:
    rows = [f"{i},0,1,1,0,0,9,0" for i in range(34)]
    answer = placed(tmp_path, rows, 0.3)
    assert answer.machine.tolist() == [0] * 33 + [1]
    assert answer.s_cores == pytest.approx(0.7, abs=1e-12)


def test_only_reservations_are_oversold_and_not_memory(tmp_path: Path) -> None:
    rows = ["1,0,10,30,0,0,9,0", "2,0,10,30,0,0,9,0"]
    assert placed(tmp_path, rows, 0.2).machine.tolist() == [0, 1]


@pytest.mark.parametrize("rate", [0.3, 0.4, 0.6])
def test_room_comes_back_whole_when_all_have_left(rate: float) -> None:
    scenario = scenario_of("internal_like")
    whole = scenario.week("s0")
    kept = whole.departure < scenario.hours
    columns = (whole.ids, whole.subscriber, whole.cores, whole.memory_gb, whole.network_gbps, whole.arrival)
    week = Week("s0", *(column[kept] for column in columns), whole.departure[kept], int(kept[: whole.warm].sum()))
    assessor = Assessor(scenario, week, "warm")
    assessor.c_hot_r(np.full(12, rate))
    assert week.departure.max() == scenario.hours - 1
    assert np.abs(assessor.copies.free_cores - 96.0).max() < 1e-6
    assert np.abs(assessor.copies.free_memory - 1536.0).max() < 1e-6
    assert not assessor.copies.loads.any()


def test_the_vms_of_a_warm_start_take_room_but_save_nothing(tmp_path: Path) -> None:
    rows = ["1,0,9,1,0,-5,3,1", "2,0,6,1,0,-4,0,1", "3,0,4,1,0,0,9,0"]
    warm, cold = placed(tmp_path, rows, 0.5, "warm"), placed(tmp_path, rows, 0.5)
    assert warm.machine.tolist() == [0, 1, 1]
    assert warm.rate.tolist() == [1.0, 1.0, 0.5]
    assert cold.machine.tolist() == [-1, -1, 0]
    assert warm.s_cores == cold.s_cores == 0.5
    assert (warm.peak_machines, cold.peak_machines) == (2, 1)


def test_the_prefills_rate_is_the_scenarios(tmp_path: Path) -> None:
    rows = ["1,0,9,1,0,-5,3,1", "2,0,6,1,0,-4,3,1"]
    assert placed(tmp_path, rows, 1.0, "warm", warm_prefill_rate=0.5).machine.tolist() == [0, 0]


def test_what_does_not_fit_is_rejected_and_counts_as_reserved_in_full(tmp_path: Path) -> None:
    rows = ["1,0,10,1,0,0,9,0", "2,1,6,1,0,0,9,0", "3,1,4,1,0,0,9,0"]
    answer = placed(tmp_path, rows, 0.8, pms=1)
    assert answer.machine.tolist() == [0, -2, -2]
    assert answer.rejects == 2
    assert answer.s_cores == pytest.approx(1.0 - (8.0 + 6.0 + 4.0) / 20.0)


def test_hours_within_the_week_weigh_the_second_figure(tmp_path: Path) -> None:
    scenario, week = small(tmp_path, ["1,0,4,1,0,0,2,0", "2,1,4,1,0,4,99,0"])
    answer = Assessor(scenario, week).assess(np.array([0.5, 1.0])).placement
    assert answer.s_cores == pytest.approx(0.25)
    assert answer.s_core_hours == pytest.approx(0.5 * 8.0 / 16.0)


def test_a_machine_counts_in_the_hours_of_the_week_in_which_it_has_a_vm(tmp_path: Path) -> None:
    # Machine 0 from 0 to 3 by two VMs at once, machine 1 from 1 on, to the end of the six hours.
    rows = ["1,0,4,1,0,0,2,0", "2,0,4,1,0,0,3,0", "3,0,10,1,0,1,99,0", "4,1,10,1,0,2,4,0"]
    answer = placed(tmp_path, rows, 1.0, pms=2)
    assert answer.machine.tolist() == [0, 0, 1, -2]
    assert answer.machine_hours == 3 + 5
    warm = placed(tmp_path, ["1,0,4,1,0,-5,2,1", "2,0,4,1,0,4,5,0"], 1.0, "warm")
    assert (warm.machine_hours, placed(tmp_path, [], 0.5).machine_hours) == (2 + 1, 0)


def test_a_week_without_requests_saves_nothing_that_could_be_named(tmp_path: Path) -> None:
    answer = placed(tmp_path, [], 0.5)
    assert (answer.s_cores, answer.peak_machines, answer.rejects) == (None, 0, 0)


def scenario_week(name: str) -> tuple[Scenario, Week]:
    scenario = scenario_of(name)
    return scenario, scenario.week("s0")


@pytest.mark.parametrize("name", ["internal_like", "azure_like"])
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_the_same_rate_for_all_saves_just_that_and_rejects_nothing(name: str, start: str) -> None:
    scenario, week = scenario_week(name)
    assessor = Assessor(scenario, week, start)
    for rate in (0.2, 0.4, 0.6, 1.0):
        answer = assessor.assess(np.full(scenario.subscribers, rate)).placement
        assert answer.s_cores == pytest.approx(1.0 - rate, abs=1e-12)
        assert answer.rejects == 0


@pytest.mark.parametrize(
    ("name", "start", "machines"),
    [
        ("internal_like", "cold", (24, 47, 71, 118)),
        ("internal_like", "warm", (91, 92, 92, 137)),
        ("azure_like", "cold", (23, 24, 36, 60)),
        ("azure_like", "warm", (49, 49, 49, 71)),
    ],
)
def test_machines_used_at_most_are_those_measured_independently(
    name: str, start: str, machines: tuple[int, ...]
) -> None:
    scenario, week = scenario_week(name)
    assessor = Assessor(scenario, week, start)
    answers = [assessor.assess(np.full(scenario.subscribers, rate)) for rate in (0.2, 0.4, 0.6, 1.0)]
    assert tuple(answer.placement.peak_machines for answer in answers) == machines
