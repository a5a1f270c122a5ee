"""A workload is named by one text, and a wrong one is answered with what there is."""

from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput, TraceError
from simulator.workloads.named import save_trace, workload_names, workload_of
from simulator.workloads.swf import SwfOptions, read_swf
from simulator.workloads.synthetic import (
    BatchOrder,
    CoevolutionVariant,
    coevolution,
    train_fit,
    train_rand,
    train_text,
)
from tests.trainer.autoscaling.simulate.conftest import Simulate

SWF = "; header\n1 0 0 120 4 -1 -1 4 -1 -1 1 1 1 1 1 1 -1 -1\n2 7200 5 60 1 -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.swf"
    path.write_text(SWF, encoding="utf-8")
    return path


def test_generated_traces_go_by_their_names_with_a_seed_or_an_order() -> None:
    assert workload_of("train-text").digest == train_text().digest
    assert workload_of("train-fit:big-first").digest == train_fit(BatchOrder.BIG_FIRST).digest
    assert workload_of("train-text:shuffled,seed=4").digest == train_text(BatchOrder.SHUFFLED, 4).digest
    assert workload_of("train-rand").digest == train_rand(0).digest
    assert workload_of("train-rand:7").digest == workload_of("train-rand:seed=7").digest == train_rand(7).digest
    assert workload_of("coevolution:3").digest == coevolution(3).digest
    wanted = coevolution(3, generations=2, variant=CoevolutionVariant.ONE_CORE)
    assert workload_of("coevolution:3,generations=2,variant=one-core").digest == wanted.digest


@pytest.mark.parametrize("name", workload_names())
def test_every_name_gives_a_trace_with_jobs(name: str) -> None:
    assert workload_of(name).jobs > 0


def test_a_log_is_read_with_its_options(log: Path) -> None:
    assert workload_of(str(log)).digest == read_swf(log)[0].digest
    scaled = workload_of(f"{log}:hours=1,run_scale=0.5,time_scale=2,width=mold", largest_vm_cores=2)
    assert scaled.jobs == 1
    assert (scaled.width[0], scaled.service_s[0]) == (2, 120.0)
    thinned = read_swf(log, SwfOptions(thin=0.5, seed=3))[0]
    assert workload_of(f"{log}:thin=0.5,seed=3").digest == thinned.digest


def test_a_saved_trace_is_verified_and_a_plain_csv_is_taken_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "saved.csv"
    save_trace(coevolution(1), path, generator="coevolution", version="1", seed=1, parameters={})
    assert workload_of(str(path)).digest == coevolution(1).digest
    path.write_text(path.read_text("utf-8").replace("1", "2", 1), encoding="utf-8")
    with pytest.raises(TraceError, match="it was changed"):
        workload_of(str(path))
    plain = tmp_path / "plain.csv"
    plain.write_text("service_s,arrival_s,width\r\n60,5.5,2\r\n30,0,1\r\n\r\n", encoding="utf-8")
    trace = workload_of(str(plain))
    assert trace.arrival_s.tolist() == [0.0, 5.5]
    assert trace.service_s.tolist() == [30.0, 60.0]
    assert trace.width.tolist() == [1, 2]
    assert trace.width.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "where", "remedy"),
    [
        ("", "line 1", "name arrival_s and service_s"),
        ("arrival_s\n0\n", "line 1", "name arrival_s and service_s"),
        ("arrival_s,service_s,color\n0,1,red\n", "line 1", "name arrival_s and service_s"),
        ("arrival_s,service_s\n0,1\n5\n", "line 3", "give 2 fields"),
        ("arrival_s,service_s\n0,1\n5,soon\n", "line 3: service_s", "give a number"),
        ("arrival_s,service_s,width\n0,1,1.5\n", "line 2: width", "give a number"),
        ("arrival_s,service_s\n0,-1\n", "service_s of job 1", "above 0"),
    ],
)
def test_a_mistake_in_a_csv_is_named_with_its_place(tmp_path: Path, content: str, where: str, remedy: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TraceError) as error:
        workload_of(str(path))
    assert where in str(error.value)
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    "text", ["lunch", "train-text:speed=2", "train-rand:-1", "train-rand:x", "train-fit:sideways", "coevolution:mode=3"]
)
def test_a_wrong_name_or_parameter_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        workload_of(text)


def test_an_unknown_workload_lists_what_there_is(simulate: Simulate) -> None:
    done = simulate("--workload", "lunch")
    assert done.exit_code == 2
    assert "'lunch': give train-text" in done.stderr
    assert "FILE.swf or FILE.swf.gz" in done.stderr


def test_missing_files_are_reported_without_a_trace_of_python(simulate: Simulate, tmp_path: Path) -> None:
    for name in ("gone.csv", "gone.swf.gz"):
        done = simulate("--workload", tmp_path / name)
        assert done.exit_code == 2
        assert f"{name}" in done.stderr
        assert "No such file" in done.stderr


def test_a_job_wider_than_any_vm_is_refused_at_once(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text("arrival_s,service_s,width\n0,60,9\n", encoding="utf-8")
    done = simulate("--workload", tmp_path / "wide.csv")
    assert done.exit_code == 2
    assert "width" in done.stderr
