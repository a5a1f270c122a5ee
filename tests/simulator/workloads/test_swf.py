"""Logs in the Standard Workload Format are read with counts and errors (autoscaler specification §7.3)."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import BadInput, TraceError
from simulator.autoscaling.world_file import preset
from simulator.workloads.recorded import nasa_day, nasa_hour
from simulator.workloads.swf import SkipReason, SwfOptions, WidthRule, read_swf
from tests.simulator.autoscaling.baseline_runs import nothing, queue_policy, run_policy, threshold_policy


def line(
    number: object, submit: object, run: object, cores: object, *, requested: object = -1, status: object = 1
) -> str:
    return f"{number} {submit} -1 {run} {cores} -1 -1 {requested} -1 -1 {status} 1 1 -1 -1 -1 -1 -1"


def log(folder: Path, *lines: str, end: str = "\n", name: str = "log.swf") -> Path:
    path = folder / name
    path.write_bytes(end.join(("; Version: 2.2", *lines, "")).encode())
    return path


def test_jobs_are_sorted_split_and_counted_from_the_first_that_ran(tmp_path: Path) -> None:
    path = log(
        tmp_path, line(4, 100, 60, 1), line(2, 40, 0, 8), line(3, 90, 30, 3), "", line(5, 95, 10, -1, requested=2)
    )
    trace, report = read_swf(path)
    assert trace.name == "log"
    assert trace.arrival_s.tolist() == [0.0, 0.0, 0.0, 5.0, 5.0, 10.0]
    assert trace.service_s.tolist() == [30.0, 30.0, 30.0, 10.0, 10.0, 60.0]
    assert trace.job_id.tolist() == [6, 7, 8, 9, 10, 4]
    assert set(trace.width.tolist()) == {1}
    assert (report.lines, report.kept, report.trace_jobs) == (6, 3, 6)
    assert report.dropped == {SkipReason.HEADER: 1, SkipReason.BLANK: 1, SkipReason.NO_RUN_TIME: 1}


def test_failed_jobs_count_if_they_ran_unless_they_are_not_wanted(tmp_path: Path) -> None:
    path = log(tmp_path, line(1, 0, 9, 1, status=0), line(2, 1, 9, 1, status=5), line(3, 2, 9, 1), line(4, 3, 9, -1))
    assert read_swf(path)[0].jobs == 3
    trace, report = read_swf(path, SwfOptions(drop_failed=True))
    assert trace.job_id.tolist() == [3]
    assert report.dropped == {SkipReason.HEADER: 1, SkipReason.STATUS: 2, SkipReason.NO_PROCESSORS: 1}


def test_a_job_that_was_swapped_out_counts_once_by_its_line_for_the_whole(tmp_path: Path) -> None:
    whole, parts = line(7, 100, 3600, 8), [line(7, -1, 1200, 8, status=status) for status in (2, 2, 3)]
    killed = [line(8, 200, 60, 1, status=0), line(8, 200, 30, 1, status=2), line(8, -1, 30, 1, status=4)]
    trace, report = read_swf(log(tmp_path, whole, *parts, *killed), SwfOptions(width_rule=WidthRule.CAP))
    assert trace.job_id.tolist() == [7, 8]
    assert trace.arrival_s.tolist() == [0.0, 100.0]
    assert trace.work_core_s == 8 * 3600 + 60
    assert report.dropped == {SkipReason.HEADER: 1, SkipReason.PARTIAL_EXECUTION: 5}


@pytest.mark.parametrize("from_s", [None, 0.0])
def test_a_job_of_unknown_submit_time_does_not_move_the_others(tmp_path: Path, from_s: float | None) -> None:
    start = 86_400 * 365
    others = [line(i, start + 60 * i, 60, 1) for i in (2, 3, 4)]
    path = log(tmp_path, line(1, -1, 60, 1), *others)
    trace, report = read_swf(path, SwfOptions(from_s=from_s, hours=24.0 if from_s is None else None))
    assert trace.job_id.tolist() == [2, 3, 4]
    assert (trace.arrival_s - trace.arrival_s[0]).tolist() == [0.0, 60.0, 120.0]
    assert trace.arrival_s[0] == (0.0 if from_s is None else start + 120)
    assert report.dropped == {SkipReason.HEADER: 1, SkipReason.NO_SUBMIT_TIME: 1}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0.5, 1e5), st.integers(1, 40)), min_size=1, max_size=20))
def test_split_and_mold_keep_the_work_and_cap_drops_what_is_too_wide(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[int, float, int]]
) -> None:
    path = log(tmp_path_factory.mktemp("swf"), *(line(i, s, r, w) for i, (s, r, w) in enumerate(jobs, start=1)))
    work = sum(run * width for _, run, width in jobs)
    assert read_swf(path)[0].work_core_s == pytest.approx(work, rel=1e-9)
    molded = read_swf(path, SwfOptions(width_rule=WidthRule.MOLD))[0]
    assert molded.work_core_s == pytest.approx(work, rel=1e-9)
    assert molded.width.max() <= 8
    capped, report = read_swf(path, SwfOptions(width_rule=WidthRule.CAP))
    too_wide = sum(width > 8 for _, _, width in jobs)
    assert capped.jobs == len(jobs) - too_wide
    assert report.dropped.get(SkipReason.TOO_WIDE, 0) == too_wide


def test_the_window_and_the_scales_apply(tmp_path: Path) -> None:
    path = log(tmp_path, *(line(i, 600 * i, 48, 1) for i in range(1, 20)))
    trace, report = read_swf(path, SwfOptions(from_s=1800.0, hours=1.0, time_scale=24.0, run_scale=0.5))
    assert trace.arrival_s.tolist() == [25.0 * i for i in range(6)]
    assert set(trace.service_s.tolist()) == {24.0}
    assert report.dropped == {SkipReason.HEADER: 1, SkipReason.OUTSIDE_WINDOW: 13}


def test_thinning_is_seeded_and_counted(tmp_path: Path) -> None:
    path = log(tmp_path, line(1, 0, 10, 1000))
    first, report = read_swf(path, SwfOptions(thin=0.3, seed=7))
    assert first.digest == read_swf(path, SwfOptions(thin=0.3, seed=7))[0].digest
    assert first.digest != read_swf(path, SwfOptions(thin=0.3, seed=8))[0].digest
    assert 230 < first.jobs < 370
    assert report.dropped[SkipReason.THINNED] == 1000 - first.jobs


def test_crlf_duplicate_ids_and_gzip_are_read(tmp_path: Path) -> None:
    path = log(tmp_path, line(5, 3, 1, 1), line(5, 1, 2, 1), end="\r\n")
    trace, _ = read_swf(path)
    assert trace.job_id.tolist() == [5, 6]
    assert trace.service_s.tolist() == [2.0, 1.0]
    packed = tmp_path / "packed.swf.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_swf(packed)[0].digest == trace.digest
    assert read_swf(packed)[0].name == "packed"


def test_a_log_over_years_keeps_the_order_of_its_jobs(tmp_path: Path) -> None:
    late = 3 * 10**8
    lines = [line(i, late + i, 0.001 * i, 1) for i in range(5, 0, -1)]
    trace, _ = read_swf(log(tmp_path, line(9, 0, 1, 1), *lines))
    assert trace.job_id.tolist() == [9, 1, 2, 3, 4, 5]
    assert trace.arrival_s.tolist() == [0.0, *(late + i for i in range(1, 6))]


@pytest.mark.parametrize("content", [b"", b"; only a header\n;\n", b"\n\n"])
def test_empty_and_header_only_files_give_no_jobs(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.swf"
    path.write_bytes(content)
    trace, report = read_swf(path)
    assert (trace.jobs, report.kept) == (0, 0)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (line(1, "x", 1, 1), r"log\.swf line 3: field 2 \(submit time\) is 'x': give a number"),
        (line(1, 0, "nan", 1), r"log\.swf line 3: field 4 \(run time\) is 'nan'"),
        (
            line(1, 0, 1, 10**9),
            r"log\.swf line 3: field 5 \(allocated processors\) is 1000000000: give at most 1000000",
        ),
        (line(1, 0, 1, -1, requested=10**9), r"log\.swf line 3: field 8 \(requested processors\) is 1000000000"),
        ("1 2 3", r"log\.swf line 3: fields is 3: the format has 18 fields"),
    ],
)
def test_a_malformed_line_is_named_with_its_field(tmp_path: Path, bad: str, text: str) -> None:
    with pytest.raises(TraceError, match=text):
        read_swf(log(tmp_path, line(9, 0, 5, 1), bad))


def test_a_missing_or_broken_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"log none\.swf is"):
        read_swf(tmp_path / "none.swf")
    broken = tmp_path / "broken.swf.gz"
    broken.write_bytes(gzip.compress(b"; header\n" * 50)[:20])
    with pytest.raises(TraceError, match=r"log broken\.swf\.gz is"):
        read_swf(broken)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_give_a_trace_or_a_trace_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("noise") / "noise.swf"
    path.write_bytes(content)
    try:
        trace, report = read_swf(path)
    except TraceError:
        return
    assert trace.jobs == report.trace_jobs


@pytest.mark.parametrize("wrong", [{"thin": 0.0}, {"time_scale": -1.0}, {"hours": 0.0}, {"from_s": float("nan")}])
def test_wrong_options_name_field_and_remedy(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(wrong))} is .*: give"):
        SwfOptions(**wrong)


def test_the_recorded_hour_is_fixed_and_documents_its_scaling() -> None:
    trace, description = nasa_hour()
    assert trace.digest == "be86faf35e6d313b5b140c34495d2ff20ae081b3248c0bc54597ffa36f490035"
    assert trace.jobs == 446
    assert trace.arrival_s[0] >= 0.0
    assert trace.arrival_s[-1] < 3600.0
    assert trace.work_core_s / (42 * 3600) == pytest.approx(0.45, abs=0.02)
    assert "Friday 26 November 1993" in description
    assert "446 jobs of 148 s" in description
    assert "44% of what 42 cores" in description


def test_on_the_recorded_hour_a_tuned_queue_rule_beats_the_best_constant_fleet_and_the_threshold() -> None:
    trace, _ = nasa_hour()
    config = preset("live-like", limits=(3, 3, 3))
    queue = run_policy(config, trace, queue_policy(300.0, 2, multi=True)).cost
    threshold = run_policy(config, trace, threshold_policy(0.75, 0.75, 1)).cost
    fleets = [(s, m, large) for s in range(1, 4) for m in range(4) for large in range(4)]
    constant = min(run_policy(replace(config, initial=fleet), trace, nothing).cost for fleet in fleets)
    assert queue < constant < threshold


def test_the_recorded_day_in_four_hours_has_a_lull_and_jobs_as_long_as_in_the_hour() -> None:
    trace, description = nasa_day()
    assert trace.arrival_s[-1] < 4 * 3600.0
    assert trace.jobs == 1207
    assert trace.service_s.mean() == pytest.approx(nasa_hour()[0].service_s.mean(), rel=0.1)
    assert trace.work_core_s / (4 * 42 * 3600) == pytest.approx(0.3, abs=0.02)
    assert "becomes 4 hours" in description
    arrived = np.histogram(trace.arrival_s, bins=12, range=(0.0, 4 * 3600.0), weights=trace.service_s)[0]
    assert (arrived < 0.15 * arrived.mean()).sum() >= 3
    with pytest.raises(BadInput, match=r"load is 0\.4"):
        nasa_day(load=0.4)


def test_the_recorded_hour_serves_other_fleets_within_reason() -> None:
    assert nasa_hour(load=0.3, max_cores=56)[0].work_core_s / (56 * 3600) == pytest.approx(0.3, abs=0.03)
    with pytest.raises(BadInput, match="fills at most 108 cores to 60%"):
        nasa_hour(load=0.6, max_cores=140)
    with pytest.raises(BadInput, match=r"load is 0\.7"):
        nasa_hour(load=0.7)
