"""`trimtab trace`: make, check and import traces of jobs (autoscaler specification §7.3, §7.4, §15.4)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from simulator.workloads.named import load_trace
from simulator.workloads.synthetic import coevolution, train_rand
from tests.simulator.workloads.test_swf import line, log
from trainer.commands.trace import origin

Trace = Callable[..., Result]


@pytest.fixture
def trace() -> Trace:
    """Call `trimtab trace` in this process."""

    def call(*arguments: str | Path) -> Result:
        return CliRunner().invoke(app, ["trace", *map(str, arguments)], catch_exceptions=False)

    return call


def test_a_generated_trace_is_the_generators_own_and_documents_its_making(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "loop.csv"
    result = trace("make", "coevolution:seed=3,generations=2", "-o", path, "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    made = coevolution(3, generations=2)
    assert load_trace(path).digest == made.digest == printed["digest"]
    assert (printed["jobs"], printed["released_jobs"], printed["stages"]) == (256, 192, 4)
    assert printed["jobs_by_width"] == {"whole VM": 256}
    assert printed["work_core_h"] == pytest.approx(made.work_core_s / 3600)
    side = json.loads(path.with_name("loop.csv.json").read_text())
    assert (side["generator"], side["seed"], side["parameters"]) == ("coevolution", 3, {"generations": "2"})
    assert side["sha256"] == printed["sha256"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train-text", ("train-text", None, {})),
        ("train-rand:7", ("train-rand", 7, {})),
        ("train-text:shuffled,seed=4", ("train-text", 4, {"order": "shuffled"})),
        ("coevolution:3,variant=one-core", ("coevolution", 3, {"variant": "one-core"})),
    ],
)
def test_the_origin_of_a_trace_is_read_from_its_text(text: str, expected: tuple[object, ...]) -> None:
    assert origin(text) == expected


def test_check_tells_what_is_in_a_file_and_refuses_a_changed_one(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    trace("make", "train-rand:7", "-o", path)
    printed = json.loads(trace("check", path, "--json").stdout)
    assert (printed["generator"], printed["seed"], printed["jobs"]) == ("train-rand", 7, train_rand(7).jobs)
    shown = trace("check", path).stdout
    assert f"jobs           {train_rand(7).jobs:,}\n" in shown
    assert "last arrival   14,515 s (4 h 2 min)\n" in shown
    path.write_bytes(path.read_bytes().replace(b",0.13\n", b",0.14\n", 1))
    refused = trace("check", path)
    assert refused.exit_code == 2
    assert "load.csv.json: sha256" in refused.stderr
    assert "it was changed" in refused.stderr


def test_an_import_tells_what_was_kept_and_dropped_for_which_reason(trace: Trace, tmp_path: Path) -> None:
    lines = [
        line(1, 0, 60, 4),
        line(2, 50, 0, 1),
        line(3, 90, 10, 1, status=5),
        line(4, 4000, 10, 1),
        line(5, 7, 8, 16),
    ]
    source, path = log(tmp_path, *lines), tmp_path / "log.csv"
    result = trace(
        "import-swf",
        source,
        "-o",
        path,
        "--hours",
        "1",
        "--width",
        "cap",
        "--drop-failed",
        "--run-scale",
        "0.5",
        "--json",
    )
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    # The count of kept jobs is that of the window; one of them is then too wide.
    assert (printed["lines"], printed["kept"], printed["jobs"]) == (6, 2, 1)
    assert printed["dropped"] == {"header": 1, "no_run_time": 1, "outside_window": 1, "status": 1, "too_wide": 1}
    saved = load_trace(path)
    assert (saved.service_s.tolist(), saved.width.tolist()) == ([30.0], [4])
    side = json.loads(path.with_name("log.csv.json").read_text())
    assert (side["generator"], side["parameters"]["log"], side["parameters"]["width_rule"]) == ("swf", "log.swf", "cap")
    assert len(side["parameters"]["log_sha256"]) == 64
    assert "dropped " in trace("import-swf", source, "-o", path, "--force").stdout


def test_a_malformed_log_names_line_and_field_and_writes_nothing(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    result = trace("import-swf", log(tmp_path, line(1, 0, 60, 4), line(2, 1, "soon", 4)), "-o", path)
    assert result.exit_code == 2
    assert "log.swf line 3: field 4 (run time) is 'soon'" in result.stderr
    assert not path.exists()


def test_nothing_is_written_over_unless_asked_and_only_a_csv(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    assert trace("make", "train-fit", "-o", path).exit_code == 0
    before = path.read_bytes()
    again = trace("make", "train-rand:1", "-o", path)
    assert (again.exit_code, path.read_bytes()) == (2, before)
    assert "give another file, or --force" in again.stderr
    assert trace("make", "train-rand:1", "-o", path, "--force").exit_code == 0
    assert path.read_bytes() != before
    assert "with one of .csv" in trace("make", "train-fit", "-o", tmp_path / "t.json").stderr
    assert "a folder that exists" in trace("make", "train-fit", "-o", tmp_path / "no" / "t.csv").stderr
