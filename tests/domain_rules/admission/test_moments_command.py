"""`trimtab admission moments` prints what the moments are (admission specification §4.5)."""

import json

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


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("--size 4 --at soon", "--at"),
        ("--size 4 --at 0", "horizons_h"),
        ("--size 4 --preset X", "preset"),
        ("--size 4 --moments guess", "moments"),
        ("--size 4 --deaths -1", "deaths"),
    ],
)
def test_what_is_wrong_is_named(words: str, field: str) -> None:
    result = moments(words)
    assert result.exit_code != 0
    assert field in result.output
