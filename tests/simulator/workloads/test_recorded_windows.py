"""The windows of recorded logs that policies are evaluated on (autoscaler specification §7.3, §11 T5)."""

import gzip
from pathlib import Path

import pytest

from domain.errors import BadInput
from simulator.autoscaling.world_file import preset
from simulator.workloads.recorded import DATA, WINDOWS, window, windows
from tests.simulator.autoscaling.baseline_runs import queue_policy, run_policy
from tests.stages import exhaustive

DIGESTS = {
    "nasa-1993-10-08": "652e18102708",
    "nasa-1993-10-20": "c7a01b90a1e9",
    "nasa-1993-12-15": "4910d508aeef",
    "hpc2n-2002-day-24": "3ed0800e79f8",
    "hpc2n-2002-day-43": "626759ef82dd",
    "hpc2n-2002-day-49": "0c8f8bd99333",
    "lcg-2005-hour-00": "8176fb7e11a4",
    "lcg-2005-hour-24": "04f358eaf4ce",
    "lcg-2005-hour-40": "4f440c6c85d4",
}


def test_there_are_three_windows_of_each_of_three_logs() -> None:
    assert {log: len(traces) for log, traces in windows().items()} == {"nasa": 3, "hpc2n": 3, "lcg": 3}
    assert [trace.name for traces in windows().values() for trace in traces][3] == (
        "hpc2n-2002-day-24-time24-run24-keep0.5"
    )
    with pytest.raises(BadInput, match=r"window is 'ctc': .* nasa-1993-10-08, "):
        window("ctc")


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_is_fixed_and_fits_a_fleet_of_140_cores(name: str) -> None:
    trace, cut = window(name), WINDOWS[name]
    assert trace.digest[:12] == DIGESTS[name]
    assert set(trace.width.tolist()) == {1}
    assert 240 * 60 <= cut.span_s <= 300 * 60
    assert 0.0 <= trace.arrival_s[0] <= trace.arrival_s[-1] < cut.span_s
    assert 0.3 <= trace.work_core_s / cut.span_s / 140 <= 0.6
    assert float((trace.arrival_s + trace.service_s).max()) < 24 * 3600


SOME = tuple(WINDOWS)[::4]


@pytest.mark.parametrize("name", [*SOME, *exhaustive(*(name for name in WINDOWS if name not in SOME))])
def test_a_window_is_worked_off_within_a_day(name: str) -> None:
    run = run_policy(preset("live-like", max_steps=24 * 60), window(name), queue_policy(300.0, 2, multi=True))
    assert run.jobs_finished == window(name).jobs


def test_the_files_are_small_and_keep_the_headers_that_thank_the_suppliers() -> None:
    thanks = {"nasa": "Bill Nitzberg", "hpc2n": "Ake Sandgren", "lcg": "Hui Li"}
    files = sorted(DATA.glob("*.swf.gz"))
    assert {f"{cut.file}.swf.gz" for cut in WINDOWS.values()} < {path.name for path in files}
    assert sum(path.stat().st_size for path in files) < 300_000
    for path in files:
        assert f"; Acknowledge: {thanks[path.name.split('_')[0]]}" in header(path)
        assert "; Note: EXCERPT of " in header(path)


def header(path: Path) -> str:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return "".join(line for line in lines if line.startswith(";"))
