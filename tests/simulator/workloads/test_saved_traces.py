"""Saved traces read back bit for bit and do not hide a change (autoscaler specification §7.4)."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import TraceError
from domain.workload import Job, Trace, make_trace, trace_of
from simulator.workloads.named import load_trace, save_trace
from simulator.workloads.synthetic import coevolution, train_rand


def save(trace: Trace, path: Path) -> str:
    return save_trace(trace, path, generator="test", version="1", seed=3, parameters={"load": 0.5})


def test_the_csv_is_plain_and_the_side_file_has_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    digest = save(trace_of("two", [Job(2, 0.1, 5.0, width=4), Job(1, 0.0, 2.5, ram_gb=0.5)]), path)
    assert path.read_bytes() == b"job_id,arrival_s,service_s,width,ram_gb\n1,0.0,2.5,1,0.5\n2,0.1,5.0,4,0.13\n"
    side = json.loads((tmp_path / "t.csv.json").read_text())
    assert side == {
        "generator": "test",
        "jobs": 2,
        "name": "two",
        "parameters": {"load": 0.5},
        "seed": 3,
        "serial_fraction": 0.0,
        "sha256": digest,
        "version": "1",
    }


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(1e-9, 1e9)), max_size=20))
def test_a_trace_reads_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[float, float]]
) -> None:
    path = tmp_path_factory.mktemp("saved") / "t.csv"
    trace = make_trace("t", [arrival for arrival, _ in jobs], [service for _, service in jobs])
    save(trace, path)
    assert load_trace(path).digest == trace.digest


def test_stages_and_whole_vms_survive(tmp_path: Path) -> None:
    trace = coevolution(4, generations=3)
    save(trace, tmp_path / "c.csv")
    again = load_trace(tmp_path / "c.csv")
    assert (again.digest, again.staged, again.serial_fraction) == (trace.digest, True, 0.05)


def test_a_changed_or_lonely_csv_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    save(train_rand(1), path)
    path.write_bytes(path.read_bytes().replace(b",1,0.13\n", b",2,0.13\n", 1))
    with pytest.raises(TraceError, match="it was changed"):
        load_trace(path)
    (tmp_path / "t.csv.json").unlink()
    with pytest.raises(TraceError, match=r"side file t\.csv\.json"):
        load_trace(path)


def test_randomised_traces_stay_in_their_ranges_and_differ_by_seed() -> None:
    digests = set()
    for seed in range(30):
        trace = train_rand(seed)
        digests.add(trace.digest)
        batches = len(np.unique(trace.arrival_s)) - 1
        assert 15 <= batches <= 30
        assert 600.0 <= trace.arrival_s[-1] - trace.arrival_s[-2] <= 3600.0
    assert len(digests) == 30
    assert train_rand(7).digest == train_rand(7).digest
