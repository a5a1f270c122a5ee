"""`trimtab simulate autoscaling` prints the measures of the autoscaler spec, §11, and the closed forms of §16."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from simulator.autoscaling.view import Measures
from tests.trainer.autoscaling.simulate.conftest import Simulate


def figures(simulate: Simulate, *arguments: str | Path) -> dict[str, Any]:
    done = simulate("--json", *arguments)
    assert done.exit_code == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("workload", "fleet", "steps", "rent", "penalty"),
    [
        ("train-text", "1,1,1", 666, 15.54, 231.9684),
        ("train-text", "10,10,10", 196, 196 * 14 / 60, 0.0),
        ("train-fit", "1,1,1", 231, 5.39, 1.998),
    ],
)
def test_a_constant_fleet_costs_what_the_closed_form_says(
    simulate: Simulate, workload: str, fleet: str, steps: int, rent: float, penalty: float
) -> None:
    words = ("--world", "exact", "--prices", "train", "--cooldown", "0", "--seed", "0")
    run = figures(simulate, "--workload", workload, "--policy", f"constant:{fleet}", *words)
    assert (run["steps"], run["interruptions"]) == (steps, 0)
    assert run["rent"] == pytest.approx(rent, abs=1e-12)
    assert run["penalty"] == pytest.approx(penalty, abs=1e-9)
    assert run["cost"] == pytest.approx(rent + penalty, abs=1e-9)


@pytest.mark.parametrize(
    ("workload", "fleet", "steps", "cost"),
    [
        ("train-text", "1,1,1", 778, 303.08784),
        ("train-text", "4,4,4", 199, 34.10724),
        ("train-text", "5,4,3", 225, 43.8834),
        ("train-text", "10,10,10", 197, 46.9998),
        ("train-fit", "1,1,1", 231, 10.7094),
    ],
)
def test_the_published_simulators_oddities_cost_what_they_should(
    simulate: Simulate, workload: str, fleet: str, steps: int, cost: float
) -> None:
    words = ("--workload", workload, "--policy", f"constant:{fleet}", "--world", "compat")
    for engine in ("plain", "numba"):
        run = figures(simulate, *words, "--engine", engine)
        assert (run["steps"], run["engine"]) == (steps, engine)
        assert run["cost"] == pytest.approx(cost, abs=1e-9)


def test_every_measure_is_printed_with_what_was_run(simulate: Simulate, jobs: Path) -> None:
    run = figures(simulate, "--workload", jobs, "--policy", "nothing", "--seed", "3")
    about = {"policy", "workload", "workload_digest", "jobs", "seed", "engine", "truncated", "stuck", "world"}
    assert run.keys() == about | {field.name for field in fields(Measures)}
    assert (run["policy"], run["workload"], run["jobs"], run["seed"]) == ("nothing", "jobs", 3, 3)
    assert run["added"] == [0, 0, 0]


def test_prices_change_the_rent_in_proportion(simulate: Simulate, jobs: Path) -> None:
    words = ("--workload", jobs, "--policy", "nothing")
    train = figures(simulate, *words, "--prices", "train")["rent"]
    assert figures(simulate, *words, "--prices", "m5a")["rent"] == pytest.approx(train * 0.43, abs=1e-12)


def test_the_price_of_waiting_changes_the_penalty_in_proportion(simulate: Simulate) -> None:
    words = ("--workload", "train-fit", "--policy", "nothing")
    assert figures(simulate, *words, "--waiting-price", "0.36")["penalty"] == pytest.approx(19.98, abs=1e-9)


def test_an_episode_may_be_cut_off(simulate: Simulate) -> None:
    run = figures(simulate, "--workload", "train-text", "--policy", "nothing", "--max-steps", "10")
    assert (run["steps"], run["truncated"]) == (10, True)
    shown = simulate("--workload", "train-text", "--policy", "nothing", "--max-steps", "10").stdout
    assert "with 14 of 1,551 jobs" in shown


def test_a_world_of_other_vm_types(simulate: Simulate, jobs: Path) -> None:
    words = ("--vm", "small,1,2,0.06", "--vm", "wide,16,64,0.9", "--limits", "5,2", "--initial", "2,0")
    run = figures(simulate, "--workload", jobs, "--policy", "nothing", *words)
    # The third job waits for the first to end, 480 s; two VMs for 20 minutes at 6 cents an hour.
    assert run["steps"] == 20
    assert run["rent"] == pytest.approx(0.04, abs=1e-12)
    assert run["mean_wait_s"] == 160.0


def test_limits_below_the_preset_fleet_cut_it(simulate: Simulate, jobs: Path) -> None:
    run = figures(simulate, "--workload", jobs, "--policy", "nothing", "--limits", "1,0,0")
    assert run["peak_cores"] == 2


def test_any_other_field_of_the_world_may_be_set(simulate: Simulate, jobs: Path) -> None:
    words = ("--workload", jobs, "--policy", "nothing", "--max-steps", "5")
    by_time = figures(simulate, *words, "--set", "integral_penalty=true", "--initial", "1,0,0")
    # The third job waits from 120 s to 300 s.
    assert by_time["penalty"] == pytest.approx(180 * 0.036 / 3600, abs=1e-12)
    assert figures(simulate, *words, "--set", "billing=hour")["rent"] == pytest.approx(1.4, abs=1e-12)


def test_other_policies_are_set_beside_with_their_ratio(simulate: Simulate) -> None:
    words = ("--workload", "train-fit", "--policy", "constant:1,1,1", "--compare", "constant:2,1,1")
    run = figures(simulate, *words)
    (other,) = run["compared"]
    assert (run["policy"], other["policy"]) == ("constant:1,1,1", "constant:2,1,1")
    assert other["rent"] == pytest.approx(231 * 1.6 / 60, abs=1e-12)
    header, first, second = simulate(*words).stdout.splitlines()[2:5]
    assert header.split()[:4] == ["policy", "cost", "ratio", "rent"]
    assert first.split()[:4] == ["constant:1,1,1", "7.39", "$", "1.000"]
    assert second.split()[:4] == ["constant:2,1,1", f"{other['cost']:.2f}", "$", f"{other['cost'] / run['cost']:.3f}"]


def test_a_policy_that_is_stuck_has_no_ratio(simulate: Simulate, tmp_path: Path) -> None:
    """A CPU rule cannot leave a fleet of no VM: there is no CPU to read."""
    world = tmp_path / "none.toml"
    kind = '[[vm_types]]\nname = "a"\ncores = 4\nmemory_gb = 8\nprice_per_hour = 0.2\nlimit = 8\nminimum = 0\n'
    world.write_text(f"version = 1\nmax_steps = 300\n{kind}", "utf-8")
    words = ("--workload", "train-fit", "--world", world, "--policy", "queue-rule", "--compare", "threshold")
    run = figures(simulate, *words)
    assert (run["stuck"], run["compared"][0]["stuck"]) == ("", "cut off")
    shown = simulate(*words).stdout.splitlines()
    assert [line.split()[3] for line in shown[3:5]] == ["1.000", "-"]
    assert "left out of the ratios" in shown[5]


def test_the_same_seed_gives_the_same_figures_and_another_seed_other_boot_times(simulate: Simulate) -> None:
    words = ("--workload", "train-fit", "--policy", "queue-rule", "--boot", "uniform:45,97")
    first, again, other = (figures(simulate, *words, "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again
    assert first["mean_wait_s"] != other["mean_wait_s"]


def test_a_workload_without_jobs_is_over_at_once(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("arrival_s,service_s\n", encoding="utf-8")
    run = figures(simulate, "--workload", tmp_path / "none.csv", "--policy", "nothing")
    assert (run["steps"], run["cost"]) == (0, 0.0)
    assert simulate("--workload", tmp_path / "none.csv", "--policy", "nothing").exit_code == 0


def test_both_engines_give_the_same_figures_and_steps(simulate: Simulate, tmp_path: Path) -> None:
    words = ("--workload", "train-rand:3", "--policy", "queue-rule", "--boot", "uniform:45,97", "--world", "live-like")
    plain, fast = (
        figures(simulate, *words, "--engine", engine, "--steps", tmp_path / engine) for engine in ("plain", "numba")
    )
    assert plain | {"engine": "numba"} == fast
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "numba").read_bytes()


def test_an_engine_that_there_is_not_is_refused(simulate: Simulate) -> None:
    assert simulate("--workload", "train-fit", "--engine", "steam").exit_code == 2
