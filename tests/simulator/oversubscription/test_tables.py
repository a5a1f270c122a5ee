"""A scenario's files: what is read, and what is refused with file, row and column (§11)."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput
from simulator.oversubscription.scenario import scenario_of
from tests.simulator.oversubscription.cases import HEADER, small, write_folder

GOOD = "1,0,2,8,0.25,0,5,0"


def test_the_packaged_weeks_are_those_described() -> None:
    internal, azure = scenario_of("internal_like"), scenario_of("azure_like")
    assert (internal.subscribers, internal.machines, internal.threshold) == (12, 500, pytest.approx(57.6))
    assert (azure.subscribers, azure.machines, azure.machine_cores) == (9, 200, 128.0)
    week = internal.week("s0")
    assert (week.requests, week.requested_cores, week.warm) == (10_030, 46_898.0, 1_870)
    assert (azure.week("s0").requests, azure.week("s0").requested_cores) == (8_160, 29_732.0)
    assert internal.weeks == azure.weeks == ("s0", "s21", "s22", "s23")
    asked = np.arange(len(week.ids)) >= week.warm
    alive = [float(week.cores[asked & (week.arrival <= t) & (week.departure > t)].sum()) for t in (5, 24, 60, 119)]
    assert alive == [1_048.0, 4_270.0, 7_542.0, 10_318.0]


def test_a_folder_of_ones_own_is_read_plain_or_compressed(tmp_path: Path) -> None:
    _, week = small(tmp_path, [GOOD, "2,1,2,8,0.25,1,5,0"])
    assert (week.ids.tolist(), week.cores.tolist()) == ([1, 2], [2.0, 2.0])
    (tmp_path / "small_s7_requests.csv.gz").write_bytes(gzip.compress(f"{HEADER}\n{GOOD}".encode()))
    scenario = scenario_of(str(tmp_path))
    assert scenario.weeks == ("s0", "s7")
    assert scenario.week("s7").ids.tolist() == [1]


def test_a_folder_that_bears_a_packaged_name_is_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "internal_like").mkdir()
    write_folder(tmp_path / "internal_like", [GOOD])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"give \./internal_like or packaged:internal_like"):
        scenario_of("internal_like")
    mine, packaged = scenario_of("./internal_like"), scenario_of("packaged:internal_like")
    assert (mine.subscribers, mine.packaged) == (2, False)
    assert (packaged.subscribers, packaged.packaged) == (12, True)
    (tmp_path / "azure_like").mkdir()
    (tmp_path / "azure_like" / "summary.json").write_text("{}")
    assert scenario_of("azure_like").packaged


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("1,0,0,8,0.25,0,5,0", "cores"),
        ("1,0,-2,8,0.25,0,5,0", "cores"),
        ("1,0,nan,8,0.25,0,5,0", "cores"),
        ("1,0,2,inf,0.25,0,5,0", "mem_gb"),
        ("1,0,2,-1,0.25,0,5,0", "mem_gb"),
        ("1,0,2,8,-0.1,0,5,0", "net_gbps"),
        ("1,0,2,8,0.25,5,5,0", "t_dep"),
        ("1,0,2,8,0.25,5,4,0", "t_dep"),
        ("1,0,2,8,0.25,0.5,4,0", "t_arr"),
        ("1,0,2,8,0.25,6,9,0", "t_arr"),
        ("1,0,2,8,0.25,-1,9,0", "t_arr"),
        ("1,0,2,8,0.25,0,9,1", "t_arr"),
        ("1,2,2,8,0.25,0,5,0", "sub"),
        ("1,-1,2,8,0.25,0,5,0", "sub"),
        ("7,0,2,8,0.25,0,5,0", "id"),
        ("1,0,10.5,8,0.25,0,5,0", "cores"),
        ("1,0,2,41,0.25,0,5,0", "mem_gb"),
        ("1,0,2,8,10.1,0,5,0", "net_gbps"),
        ("1,0,2,8,0.25,0,5,2", "warm_only"),
        ("1,0,2,8,0.25,0,,0", "t_dep"),
        ("1,0,two,8,0.25,0,5,0", "cores"),
    ],
)
def test_a_wrong_value_is_named_with_file_row_and_column(tmp_path: Path, row: str, column: str) -> None:
    scenario = scenario_of(str(write_folder(tmp_path, ["7,0,2,8,0.25,0,5,0", row])))
    with pytest.raises(BadInput, match=rf"^small_s0_requests\.csv: row 2: {column} is "):
        scenario.week("s0")


def test_a_vm_as_large_as_a_machine_is_accepted(tmp_path: Path) -> None:
    _, week = small(tmp_path, ["1,0,10,40,10,0,100000,0", "2,0,2,8,0.25,-3,0,1"])
    assert week.cores.tolist() == [2.0, 10.0]


def test_missing_columns_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, [])
    (folder / "small_s0_requests.csv").write_text("id,sub,cores,t_arr\n1,0,2,0")
    with pytest.raises(BadInput, match=r" mem_gb, net_gbps, t_dep, warm_only$"):
        scenario_of(str(folder)).week("s0")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2,0,0.2,0.1", "row 49: sub"),
        ("0,24,0.2,0.1", "row 49: hour"),
        ("0,3,0.2,0.1", "row 49: hour"),
        ("0,1.5,0.2,0.1", "row 49: hour"),
    ],
)
def test_a_wrong_line_of_a_profile_is_named(tmp_path: Path, line: str, words: str) -> None:
    lines = [f"{n},{hour},0.2,0.1" for n in range(2) for hour in range(24)]
    with pytest.raises(BadInput, match=words):
        scenario_of(str(write_folder(tmp_path, [], profile=[*lines, line])))


@pytest.mark.parametrize("line", ["1,3,-0.1,0.1", "1,3,1.2,0.1", "1,3,0.2,inf", "1,3,0.2,-1"])
def test_a_profile_holds_shares(tmp_path: Path, line: str) -> None:
    lines = [f"0,{hour},0.2,0.1" for hour in range(24)]
    with pytest.raises(BadInput, match=r"row 25: (mu|sd)"):
        scenario_of(str(write_folder(tmp_path, [], profile=[*lines, line])))


def test_hours_without_samples_are_pooled_and_no_spread_is_a_very_small_one(tmp_path: Path) -> None:
    scenario, _ = small(tmp_path, [], profile=["0,5,0.2,0", "0,7,0.4,0.1", "1,0,,", "1,1,0.5,0.1"])
    assert scenario.mu[0, 6] == pytest.approx(0.3)
    assert scenario.mu[0, 20] == pytest.approx(0.3)
    assert scenario.sd[0, 5] == 1e-6
    assert scenario.mu[1, 0] == 0.5


def test_a_subscriber_without_any_profile_cannot_be_played(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="sub is 1: add at least one hour"):
        scenario_of(str(write_folder(tmp_path, [], profile=["0,5,0.2,0.1"])))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("pm_cores", 0), ("pm_cores", "many"), ("pms", 2.5), ("beta", 1.5), ("beta", -1), ("n_subscribers", None)),
        *(("actions", [0.5]), ("actions", "all"), ("warm_prefill_rate", 1.5), ("horizon_h", float("nan"))),
    ],
)
def test_wrong_constants_are_named(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(BadInput, match=field if field != "actions" else "actions"):
        scenario_of(str(write_folder(tmp_path, [], **{field: value})))


def test_hot_hours_that_break_the_promise_follow_the_horizon(tmp_path: Path) -> None:
    assert small(tmp_path, [], horizon_h=168)[0].violation_hours == 5
    assert small(tmp_path, [], delta_count=2)[0].violation_hours == 2


@pytest.mark.parametrize("text", ["nowhere", "internal", "/"])
def test_what_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="scenario"):
        scenario_of(text)


def test_a_week_that_there_is_not_is_answered_with_those_there_are() -> None:
    with pytest.raises(BadInput, match="s0, s21, s22, s23"):
        scenario_of("azure_like").week("s1")
