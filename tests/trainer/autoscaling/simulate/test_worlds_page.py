"""The page about world and task files: its examples are whole, and read as they stand."""

import re
from pathlib import Path

import pytest

from simulator.autoscaling.reference.world_file import (
    MOST_TYPES,
    VmTypeTable,
    WorldTable,
    world_from,
    world_names,
    world_text,
)
from simulator.checked_toml import Table
from trainer.autoscaling.baselines.tuning import MOST_FLEETS
from trainer.autoscaling.tasks import FOLDER, TASKS, task_in

PAGE = (Path(__file__).parents[4] / "docs" / "train" / "worlds.md").read_text("utf-8")
WORLD, TASK = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_of_a_world_reads_and_has_every_field() -> None:
    world = world_from(WORLD, "my")
    assert [kind.name for kind in world.config.types] == ["m5a.large", "m5.xlarge", "c5.4xlarge"]
    assert world.config.boot_points_s == ((60.0, 120.0), (75.0, 75.0), (58.0, 64.0, 70.0, 83.0, 210.0))
    assert world_from(world_text(world), "my") == world
    names = [*WorldTable.model_fields, *VmTypeTable.model_fields]
    for field in WorldTable.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Table):
            names += field.annotation.model_fields
    absent = [name for name in names if not re.search(rf"(^|\[){name}\b", WORLD, re.MULTILINE)]
    assert absent == ["compat"]
    assert "`compat`" in PAGE


@pytest.mark.exhaustive
def test_the_example_of_a_task_reads(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TASK, "utf-8")
    task = task_in(path)
    assert [len(stage.traces) for stage in task.stages] == [64, 64 + 16 + 1]
    assert (len(task.selection), len(task.report)) == (8, 30)


def test_what_the_page_counts_and_names_is_so() -> None:
    assert f"1 to {MOST_TYPES} VM types" in PAGE
    assert f"more than {MOST_FLEETS:,} fixed fleets" in PAGE
    assert [name for name in world_names() if f"`{name}`" not in PAGE] == []
    assert {*TASKS} - {path.stem for path in FOLDER.glob("*.toml")} == {"live-like"}
