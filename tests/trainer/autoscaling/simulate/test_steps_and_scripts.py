"""Scripts of actions act as written, and the CSV of steps holds each step to the last digit."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit, train_text
from tests.trainer.autoscaling.simulate.conftest import Simulate

INDICES = st.lists(st.integers(0, 6), max_size=12)
CHANGES = st.lists(st.tuples(*[st.integers(-6, 6)] * 3), max_size=12)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def play(simulate: Simulate, script: Path, steps: Path, *arguments: str) -> list[dict[str, str]]:
    done = simulate("--script", script, "--steps", steps, "--workload", "train-text", *arguments)
    assert done.exit_code == 0, done.stderr
    return rows_of(steps)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=INDICES | CHANGES, as_json=st.booleans(), cooldown_s=st.sampled_from((0, 300)))
def test_a_script_of_either_kind_acts_as_the_simulator_itself_would(
    simulate: Simulate, tmp_path: Path, script: list[int] | list[tuple[int, ...]], as_json: bool, cooldown_s: int
) -> None:
    file, steps = tmp_path / "script", tmp_path / "steps.csv"
    lines = (str(action) if isinstance(action, int) else ",".join(map(str, action)) for action in script)
    file.write_text(json.dumps(script) if as_json else "\n".join(lines), encoding="utf-8")
    rows = play(simulate, file, steps, "--cooldown", str(cooldown_s), "--max-steps", "20")
    config = preset("train-text", boot_low_s=71.0, boot_high_s=71.0, cooldown_s=float(cooldown_s), max_steps=20)
    simulation = Simulation(config, train_text())
    assert len(rows) == 20
    for row, action in zip(rows, [*script, *[0] * (20 - len(script))], strict=True):
        result = simulation.step(action)
        info = result.info
        counts = (info.step, info.waiting, info.finished, info.cores_busy, info.cores_ready)
        assert tuple(int(row[name]) for name in ("step", "waiting", "finished", "busy", "allocated")) == counts
        assert (float(row["rent"]), float(row["penalty"])) == (result.rent, result.penalty)
        assert [float(row[f"obs_{i}"]) for i in range(7)] == result.obs.astype(np.float64).tolist()
        assert tuple(int(row[f"ready_{k}"]) for k in range(3)) == info.ready


def test_each_line_is_a_step_and_numbers_stand_in_full(simulate: Simulate, tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    simulate("--workload", "train-fit", "--policy", "constant:1,1,1", "--steps", steps)
    first, second, *_ = steps.read_text("utf-8").splitlines()
    assert first.startswith(
        "step,waiting,finished,busy,allocated,rent,penalty,obs_0,obs_1,obs_2,obs_3,obs_4,obs_5,obs_6"
    )
    assert second.startswith("1,22,14,14,14,0.023333333333333334,0.0132,0.10000000149011612,1.0,1.0,")
    rows = rows_of(steps)
    assert [int(row["step"]) for row in rows] == list(range(1, 232))
    assert rows[-1]["finished"] == "1551"
    assert sum(float(row["rent"]) for row in rows) == pytest.approx(5.39, abs=1e-9)


def test_blank_lines_and_comments_are_skipped_and_a_constant_fleet_is_where_it_starts(
    simulate: Simulate, tmp_path: Path
) -> None:
    script = tmp_path / "script.txt"
    script.write_text("# grow\n5\n\n+0,+1,-1\n", encoding="utf-8")
    rows = play(simulate, script, tmp_path / "s.csv", "--policy", "constant:2,0,1", "--max-steps", "4")
    assert [int(row["allocated"]) for row in rows] == [12, 4 + 8, 4 + 8 + 4, 4 + 8 + 4]


def test_after_the_scripts_end_nothing_is_changed(simulate: Simulate, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text("[3]", encoding="utf-8")
    done = simulate("--script", script, "--workload", "train-fit", "--json")
    assert json.loads(done.stdout)["added"] == [0, 1, 0]
    assert json.loads(done.stdout)["jobs_finished"] == train_fit().jobs


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("0\n7\n", "line 2"),
        ("# first\n\n0\n9\n", "line 4"),
        ("0\n1,2\n", "line 2"),
        ("0\nadd\n", "line 2"),
        ("0\n1.5\n", "line 2"),
        ("0,1\n", "line 1"),
        ("[0, 12]", "action 2"),
        ("[1, true]", "action 2"),
        ('[0, "add"]', "action 2"),
        ("[0,\n", "line 2"),
    ],
)
def test_an_action_that_does_not_exist_is_refused_by_its_place(
    simulate: Simulate, tmp_path: Path, content: str, named: str
) -> None:
    script = tmp_path / "script.txt"
    script.write_text(content, encoding="utf-8")
    done = simulate("--script", script, "--workload", "train-fit")
    assert done.exit_code == 2
    assert "script.txt" in done.stderr
    assert named in done.stderr


def test_a_script_and_a_policy_that_decides_are_not_both_taken(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "script.txt").write_text("0\n", encoding="utf-8")
    done = simulate("--script", tmp_path / "script.txt", "--policy", "queue-rule")
    assert done.exit_code == 2
    assert "leave out --policy" in done.stderr
