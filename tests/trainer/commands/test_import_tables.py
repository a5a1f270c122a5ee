"""Tables of other programs become traces, instances and scenarios, whatever their columns and times are like."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from agent.commands.main import app
from domain.rules.placement.policies import BF
from simulator.oversubscription.scenario import scenario_of
from simulator.placement import engine
from simulator.placement.instances import instance_of
from simulator.workloads.named import load_trace

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ISO = (
    "submit_time,elapsed,cpus\n2026-03-01T12:00:00Z,600,1\n2026-03-01 12:01:00+00:00,90.5,2\n"
    "2026-03-01T13:02:00+01:00,60,1\n"
)
COLUMNS = ("--column", "submit=submit_time", "--column", "runtime=elapsed", "--column", "cores=cpus")


def trace(*words: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, words)])


def table(folder: Path, text: str, name: str = "jobs.csv") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_a_table_with_iso_times_is_a_saved_trace(tmp_path: Path) -> None:
    found = trace("import-csv", table(tmp_path, ISO), "-o", tmp_path / "mine.csv", *COLUMNS, "--json")
    assert found.exit_code == 0, found.output
    assert (json.loads(found.stdout)["kept"], json.loads(found.stdout)["jobs"]) == (3, 4)
    made = load_trace(tmp_path / "mine.csv")
    assert made.name == "jobs"
    assert made.arrival_s.tolist() == [0.0, 60.0, 60.0, 120.0], "a job of two cores is two of one"
    assert made.service_s.tolist() == [600.0, 90.5, 90.5, 60.0]
    assert trace("check", tmp_path / "mine.csv").exit_code == 0


@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000, 1_000_000_000])
def test_epoch_times_are_known_by_their_size(tmp_path: Path, unit: int) -> None:
    at = [int((BEGIN + timedelta(minutes=k)).timestamp()) * unit for k in range(3)]
    text = "submit,end\n" + "".join(f"{t},{t + 90 * unit}\n" for t in at)
    assert trace("import-csv", table(tmp_path, text), "-o", tmp_path / "mine.csv").exit_code == 0
    made = load_trace(tmp_path / "mine.csv")
    assert (made.arrival_s.tolist(), made.service_s.tolist()) == ([0.0, 60.0, 120.0], [90.0] * 3)


def test_a_parquet_file_gives_the_same_trace(tmp_path: Path) -> None:
    columns = {
        "submit_time": [BEGIN, BEGIN + timedelta(minutes=1), BEGIN + timedelta(minutes=2)],
        "elapsed": [timedelta(seconds=600), timedelta(seconds=90.5), timedelta(seconds=60)],
        "cpus": [1, 2, 1],
        "user": ["a", "b", "c"],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "jobs.parquet")
    digests = []
    for given in (table(tmp_path, ISO), tmp_path / "jobs.parquet"):
        found = trace("import-csv", given, "-o", tmp_path / "mine.csv", "--force", *COLUMNS, "--json")
        assert found.exit_code == 0, found.output
        digests.append(json.loads(found.stdout)["digest"])
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("text", "columns", "field", "words"),
    [
        (ISO, (), "--column", "--column submit=NAME"),
        (ISO, ("--column", "submit=when"), "--column", "submit_time, elapsed, cpus"),
        (ISO, ("--column", "start=submit_time"), "--column", "submit, runtime, end, cores"),
        ("submit,cores\n1,1\n", (), "--column", "--column end=NAME"),
        ("submit,runtime\nsoon,1\n", (), "jobs.csv line 2: submit", "2026-03-01T12:00:00Z"),
        ("submit,runtime\n,1\n", (), "jobs.csv line 2: submit", "2026-03-01T12:00:00Z"),
        ("submit,runtime\n1,1\n2,long\n", (), "jobs.csv line 3: runtime", "give a number"),
        ("submit,runtime\n1\n", (), "jobs.csv line 2: fields", "give 2 fields"),
    ],
)
def test_a_mistake_is_named_with_its_line_or_option(
    tmp_path: Path, text: str, columns: tuple[str, ...], field: str, words: str
) -> None:
    refused = trace("import-csv", table(tmp_path, text), "-o", tmp_path / "mine.csv", *columns)
    assert (refused.exit_code, refused.stderr.startswith(f"error: {field} is ")) == (2, True), refused.output
    assert words in refused.stderr
    assert not (tmp_path / "mine.csv").exists()


def test_check_of_a_plain_table_names_the_command_that_imports_it(tmp_path: Path) -> None:
    refused = trace("check", table(tmp_path, ISO))
    assert (refused.exit_code, "trimtab trace import-csv" in refused.stderr) == (2, True)


def test_a_table_of_requests_is_an_instance_of_placement(tmp_path: Path) -> None:
    text = "created,end,cores,memory,application\n" + "".join(
        f"2026-03-01T12:0{k}:00Z,{end},{2 + k % 2},7.5,{'web' if k < 4 else ''}\n"
        for k, end in enumerate(("2026-03-01T13:00:00Z", "", "", "", "", ""))
    )
    given = ("import-requests", table(tmp_path, text), "-o", tmp_path / "pods.json", "--column", "time=created")
    found = trace(*given, "--host", "8,32", "--json")
    assert found.exit_code == 0, found.output
    made = instance_of(str(tmp_path / "pods.json"))
    assert [application.demand for application in made.applications] == [(2, 8, 1), (3, 8, 1), (2, 8, 1), (3, 8, 1)]
    assert [request.at_s for request in made.requests] == [60.0 * k for k in range(6)]
    assert [(release.request, release.at_s) for release in made.releases] == [("r0", 3600.0)]
    assert engine.play(made, BF).rejected == 0
    refused = trace(*given, "--host", "2,32", "--force")
    assert (refused.exit_code, "jobs.csv line 3 is" in refused.stderr) == (2, True)


def test_a_table_of_usage_is_a_scenario_with_weeks_and_profiles(tmp_path: Path) -> None:
    """Two subscribers for three days of 24 hours; a VM of the second comes on the second day."""
    rows = [
        f"{(BEGIN.replace(hour=0) + timedelta(hours=hour)).isoformat()},{vm},{owner},4,{100 * share:g}"
        for hour in range(72)
        for vm, owner, share, since in (("a", "x", 0.25, 0), ("b", "y", 0.5, 0), ("c", "y", 0.7, 30))
        if hour >= since
    ]
    text = "at,vm,tenant,cores,cpu\n" + "\n".join(rows) + "\n"
    columns = ("--column", "time=at", "--column", "subscriber=tenant", "--column", "usage=cpu")
    given = ("import-usage", table(tmp_path, text, "pool.csv"), "-o", tmp_path / "pool", *columns)
    machine = ("--machine", "32,128", "--machines", "3", "--hours", "24")
    found = trace(*given, *machine, "--usage-scale", "0.01", "--json")
    assert found.exit_code == 0, found.output
    assert (json.loads(found.stdout)["weeks"], json.loads(found.stdout)["subscribers"]) == ("w0, w1, w2", 2)
    made = scenario_of(str(tmp_path / "pool"))
    assert (made.machines, made.machine_cores, made.hours) == (3, 32.0, 24)
    assert made.mu[0].tolist() == pytest.approx([0.25] * 24)
    week = made.week("w1")
    assert sorted(week.arrival[week.warm :].tolist()) == [6]
    assert week.warm == 2
    refused = trace(*given, *machine, "--force")
    assert (refused.exit_code, "--usage-scale" in refused.stderr) == (2, True)
