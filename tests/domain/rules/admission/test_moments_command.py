"""`trimtab admission moments` prints what the moments are (admission specification §4.5)."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app

CASE_A = "--size 4 --deaths 5 --core-hours 60 --scale-outs 3 --hours 20 --extra-cores 7 --size-draws 4 --gap-hours 0"


def moments(words: str) -> Result:
    return CliRunner().invoke(app, ["admission", "moments", *words.split()], catch_exceptions=False)


def test_lists_come_in_the_order_asked() -> None:
    data = json.loads(moments(f"--preset T --moments ab {CASE_A} --at 720,1,24 --json").stdout)
    assert data["at"] == [720.0, 1.0, 24.0]
    assert data["E"] == pytest.approx([0.46, 4.078, 4.524], rel=0.05)
    assert data["V"] == pytest.approx([2.702**2, 1.387**2, 4.686**2], rel=0.05)


def test_the_paper_is_met_to_its_digits() -> None:
    data = json.loads(moments(f"--preset T --moments paper {CASE_A} --at 1,24,720 --json").stdout)
    assert data["E"] == pytest.approx([4.085, 4.64277, 0.697795], rel=1e-5)
    assert data["third"] is None


def test_people_get_a_table_and_a_fresh_deployment_needs_its_size_alone() -> None:
    shown = moments("--size 4 --at 24").stdout
    assert "1 d" in shown
    assert "4.002" in shown


def test_a_population_of_ones_own_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "K"\ncapacity = 500\n', "utf-8")
    mine, preset = (json.loads(moments(f"--preset {name} --size 4 --at 24 --json").stdout) for name in (file, "K"))
    assert (mine["E"], mine["V"]) == (preset["E"], preset["V"])
    file.write_text('preset = "K"\nlam_rate = 0.01\n', "utf-8")
    assert json.loads(moments(f"--preset {file} --size 4 --at 24 --json").stdout)["E"][0] > mine["E"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--at soon", "--at is 'soon': give hours with commas"),
        ("--at 0", "--at is '0': give hours above 0 with commas"),
        ("--at 1,inf", "--at is '1,inf': give hours above 0 with commas"),
        ("--preset X", "--preset is 'X': give T, H, K or a .json or .toml file"),
        ("--preset none.toml", "--preset is 'none.toml': give a file that can be read"),
        ("--moments guess", "--moments is 'guess': give one of ab, ab_fast, na, paper, volterra"),
        ("--deaths -1", "--deaths is -1.0: give a finite number, 0 or more"),
        ("--core-hours nan", "--core-hours is nan: give a finite number, 0 or more"),
        ("--scale-outs inf", "--scale-outs is inf: give a finite number, 0 or more"),
        ("--hours -1", "--hours is -1.0: give a finite number, 0 or more"),
        ("--gap-hours -1", "--gap-hours is -1.0: give a finite number, 0 or more"),
        ("--extra-cores -3", "--extra-cores is -3.0: give a finite number, 0 or more"),
        ("--size-draws -1", "--size-draws is -1.0: give a finite number, 0 or more"),
        ("--size 0", "Invalid value for '--size'"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(words: str, message: str) -> None:
    result = CliRunner().invoke(app, ["admission", "moments", "--size", "4", *words.split()])
    assert result.exit_code != 0
    assert message in " ".join((result.output + str(result.exception or "")).split())
