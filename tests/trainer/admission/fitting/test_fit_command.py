"""`trimtab fit`: from a table of machines to a preset that the simulator plays; wrong options are named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agent.commands.main import app
from simulator.admission.arrivals import cluster_of
from trainer.admission.fitting.fits import fit_marginal
from trainer.admission.fitting.histories import histories_of, read_vm_table
from trainer.admission.fitting.report import START

QUICK = ("--simulated", "1000")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


def data(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "vmtable.csv.gz"
    seen = data(invoke("make-table", "-o", path, "--deployments", 400, "--seed", 3, "--json"))
    assert (seen["deployments"], seen["seed"]) == (400, 3)
    assert seen["machines"] == len(read_vm_table(path).cores)
    return path


@pytest.mark.exhaustive
def test_a_fit_writes_a_preset_that_can_be_played(table: Path, tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    found = data(invoke("admission", table, "-o", preset, "--capacity", 5000, "--sla", "0.001", "--json", *QUICK))
    cluster = cluster_of(str(preset))
    fit = fit_marginal(histories_of(read_vm_table(table)), START)
    assert cluster.population == fit.population
    assert (cluster.name, cluster.capacity, cluster.sla) == ("mine", 5000, 0.001)
    assert cluster.arrival_rate == pytest.approx(found["fitted_deployments"] / found["window_h"])
    assert found["fits"]["empirical-bayes"]["population"]["power"] == fit.population.power
    assert set(found["fits"]) == {"empirical-bayes", "two-step"}
    assert found["facts"]["cores_activated"] * found["fitted_deployments"] == pytest.approx(found["machines"], rel=0.05)
    assert found["fitted"]["dead"] == pytest.approx(found["facts"]["dead_share"] * found["fitted_deployments"])
    assert found["fitted"]["cores_activated"] <= found["machines"]
    arguments = ("simulate", "admission", "--preset", str(preset), "--policy", "zeroth:4000", "--years", "0.02")
    played = data(CliRunner().invoke(app, [*arguments, "--json"]))
    assert played["preset"] == "mine"


@pytest.mark.exhaustive
def test_the_published_fit_alone_goes_into_a_json_preset(table: Path, tmp_path: Path) -> None:
    preset = tmp_path / "mine.json"
    arguments = ("admission", table, "-o", preset, "--method", "two-step", "--arrival-rate", 2, "--json", *QUICK)
    found = data(invoke(*arguments))
    cluster = cluster_of(str(preset))
    assert list(found["fits"]) == ["two-step"]
    assert cluster.population.mu_shape == found["fits"]["two-step"]["population"]["mu_shape"]
    assert cluster.arrival_rate == 2.0
    assert data(invoke(*arguments, "--force")) == found


@pytest.mark.exhaustive
def test_what_was_left_out_and_how_well_it_fits_can_be_read(table: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.csv.gz"
    spoilt.write_bytes(gzip.compress(b"v,u,d0000001,900,600,1,1,1,x,1,2\n" + gzip.decompress(table.read_bytes())))
    shown = invoke("admission", spoilt, *QUICK)
    assert shown.exit_code == 0
    assert "created: 1, first on line 1\n" in shown.stdout
    for words in ("empirical-bayes  two-step", "mu_shape", "±", "deployments dead in the window", "1024+", "eps1"):
        assert words in shown.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_sizes_are_drawn_the_same_every_time(table: Path, tmp_path: Path, kind: str) -> None:
    drawn = []
    for name in ("first", "again"):
        picture = tmp_path / f"{name}.{kind}"
        options = ("--method", "empirical-bayes", "--plot", picture, "--json", *QUICK)
        assert invoke("admission", table, *options).exit_code == 0
        drawn.append(picture.read_bytes())
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith({"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>"}[kind])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--sla", "2"), "--sla is 2.0: give a share between 0 and 1"),
        (("--arrival-rate", "-1"), "--arrival-rate is -1.0: give deployments per hour"),
        (("-o", "mine.yaml"), "--output is 'mine.yaml': end the file's name with one of .toml, .json"),
        (("-o", "no/folder/mine.toml"), "give a file in a folder that exists"),
        (("--plot", "sizes.gif"), "--plot is 'sizes.gif': end the file's name with one of .png"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_read(arguments: tuple[str, ...], words: str) -> None:
    answered = invoke("admission", "nowhere.csv", *arguments)
    assert answered.exit_code == 2
    assert words in answered.output


def test_a_missing_or_later_table_is_reported(tmp_path: Path) -> None:
    assert "nowhere.csv': give a file" in invoke("admission", "nowhere.csv").output
    later = tmp_path / "later.csv"
    later.write_text("v,u,d,300,600,1,1,1,x,>24,>64\n", encoding="utf-8")
    answered = invoke("admission", later)
    assert answered.exit_code == 2
    assert "(column 10) is '>24'" in answered.output


def test_files_are_not_written_over_unless_asked(table: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.toml"
    there.write_text("mine", encoding="utf-8")
    assert "--force to write over it" in invoke("admission", table, "-o", there).output
    assert there.read_text("utf-8") == "mine"
    assert "--force to write over it" in invoke("make-table", "-o", table).output
    assert "file's name with one of .csv" in invoke("make-table", "-o", tmp_path / "x.parquet").output
