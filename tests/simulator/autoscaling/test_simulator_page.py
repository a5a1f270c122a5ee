"""The page about the simulator names every setting, switch and recorded window there is."""

from dataclasses import fields
from pathlib import Path

from simulator.autoscaling.configuration import ROWS, SimulationConfig
from simulator.workloads.named import workload_names

PAGE = (Path(__file__).parents[3] / "docs" / "train" / "autoscaling-simulator.md").read_text("utf-8")


def test_every_setting_is_described() -> None:
    assert [field.name for field in fields(SimulationConfig) if f"`{field.name}`" not in PAGE] == []


def test_every_switch_is_in_its_row() -> None:
    assert [name for row, name in enumerate(ROWS, start=1) if f"| {row} | `{name}` |" not in PAGE] == []


def test_every_workload_is_listed() -> None:
    assert [name for name in workload_names() if f"`{name}`" not in PAGE and f"`{name}:SEED`" not in PAGE] == []
