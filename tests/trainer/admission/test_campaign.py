"""Runs are kept as they come, so that interrupted work goes on; where runs are played makes no difference."""

import json
from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput
from simulator.admission import cluster_of, draw_run, play, rule_of
from trainer.admission.experiments import EXPERIMENTS, experiments_of
from trainer.admission.table import Cell, Runs, Store, configuration_of, pieces_of, run_cells
from trainer.kit.jobs import Workers

HOURS = 1460.0
SEEDS = range(12)


def cells(small: str) -> list[Cell]:
    return [Cell(small, "zeroth:300", hours=HOURS), Cell(small, "second:1.5", hours=HOURS)]


def same(ours: Runs, theirs: Runs) -> bool:
    left, right = ours.as_data(), theirs.as_data()
    return all(np.array_equal(left[name], right[name]) for name in left if name != "wall_s")


def test_the_table_holds_what_the_simulator_said(small: str) -> None:
    cell = cells(small)[1]
    runs = run_cells(Store(None, configuration_of([small], HOURS)), [cell], SEEDS)[cell]
    alone = play(draw_run(cluster_of(small), 7, hours=HOURS), rule_of(cell.policy))
    assert runs.seed.tolist() == list(SEEDS)
    assert runs.utilisation[7] == alone.utilisation
    assert runs.failures[7].tolist() == alone.failures.tolist()
    assert runs.requests[7].tolist() == alone.requests.tolist()
    assert runs.binding[7].tolist() == alone.binding.tolist()
    assert runs.admitted_by_class[7].tolist() == alone.admitted_by_class.tolist()


def test_work_that_was_ended_goes_on_and_comes_to_the_same(small: str, tmp_path: Path) -> None:
    configuration = configuration_of([small], HOURS)
    whole = run_cells(Store(None, configuration), cells(small), SEEDS)

    class Ended(Exception):
        """The command was interrupted."""

    played: list[int] = []

    def ended(cell: Cell, runs: int) -> None:
        played.append(runs)
        if sum(played) >= 10:
            raise Ended

    with pytest.raises(Ended):
        run_cells(Store(tmp_path / "kept", configuration), cells(small), SEEDS, on_runs=ended)
    again: list[int] = []
    store = Store(tmp_path / "kept", configuration)
    resumed = run_cells(store, cells(small), SEEDS, on_runs=lambda cell, runs: again.append(runs))
    assert sum(played) + sum(again) == 2 * len(SEEDS)
    assert all(same(resumed[cell], whole[cell]) for cell in cells(small))
    assert pieces_of(Store(tmp_path / "kept", configuration), cells(small), SEEDS) == []


def test_cells_keep_step_with_each_other(small: str) -> None:
    pieces = pieces_of(Store(None, configuration_of([small], HOURS)), cells(small), SEEDS)
    assert [seeds[0] for _, seeds in pieces] == [0, 0, 5, 5, 10, 10]


@pytest.mark.exhaustive
def test_two_processes_come_to_the_same_as_one(small: str) -> None:
    configuration = configuration_of([small], HOURS)
    alone = run_cells(Store(None, configuration), cells(small), SEEDS)
    shared = run_cells(Store(None, configuration), cells(small), SEEDS, Workers(2))
    assert all(same(alone[cell], shared[cell]) for cell in cells(small))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_comes_to_the_same_as_this_process(small: str) -> None:
    configuration = configuration_of([small], HOURS)
    alone = run_cells(Store(None, configuration), cells(small), SEEDS)
    shared = run_cells(Store(None, configuration), cells(small), SEEDS, Workers(1, "local"))
    assert all(same(alone[cell], shared[cell]) for cell in cells(small))


def test_a_folder_of_another_configuration_is_refused_with_what_differs(small: str, tmp_path: Path) -> None:
    Store(tmp_path / "kept", configuration_of([small], HOURS))
    with pytest.raises(BadInput, match=r"was 1460\.0, is 730\.0"):
        Store(tmp_path / "kept", configuration_of([small], 730.0))
    changed = json.loads(Path(small).read_text()) | {"capacity": 500}
    Path(small).write_text(json.dumps(changed))
    with pytest.raises(BadInput, match=r"capacity was 400, is 500"):
        Store(tmp_path / "kept", configuration_of([small], HOURS))


def test_other_code_is_another_configuration(tmp_path: Path) -> None:
    configuration = configuration_of(["K"], HOURS)
    Store(tmp_path, configuration)
    with pytest.raises(BadInput, match="code was"):
        Store(tmp_path, configuration | {"code": "0" * 12})


def test_another_cluster_may_join_a_folder(small: str, tmp_path: Path) -> None:
    Store(tmp_path / "kept", configuration_of(["K"], HOURS))
    both = Store(tmp_path / "kept", configuration_of([small], HOURS))
    assert set(both.configuration["clusters"]) == {"K", small}


def test_a_file_that_is_none_is_named(small: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "kept", configuration_of([small], HOURS))
    cell = cells(small)[0]
    run_cells(store, [cell], range(2))
    file = tmp_path / "kept" / "runs" / f"{cell.key}.npz"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(BadInput, match=file.name):
        Store(tmp_path / "kept", configuration_of([small], HOURS)).missing(cell, range(2))


def test_a_seed_is_kept_once(small: str) -> None:
    cell = cells(small)[0]
    store = Store(None, configuration_of([small], HOURS))
    run_cells(store, [cell], range(3))
    runs = run_cells(store, [cell], range(3))[cell]
    store.add(cell, runs.where(np.array([1])))
    kept = store.runs(cell)
    assert kept is not None
    assert kept.seed.tolist() == [0, 1, 2]


@pytest.mark.parametrize("preset", ["T", "K", "H"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_comparison_is_fixed_beforehand_with_five_thresholds_a_rule(name: str, preset: str) -> None:
    (experiment,) = experiments_of([name], preset)
    bounds = {"zeroth:20001"}
    assert all(len(x.cells) >= 5 or {c.policy for c in x.cells} == bounds for x in experiment.ladders)
    names = {ladder.name for ladder in experiment.ladders}
    assert all({challenger, base} <= names for challenger, base in experiment.pairs)
    assert not experiment.judged or experiment.judged in {cell.policy for cell in experiment.cells}
    assert len({cell.key for cell in experiment.cells}) == len(experiment.cells)


def test_a_part_of_an_experiment_keeps_the_pairs_that_are_whole() -> None:
    (part,) = experiments_of(["ordering"], "K", only=["second", "zeroth"])
    assert [ladder.name for ladder in part.ladders] == ["zeroth", "second"]
    assert part.pairs == (("second", "zeroth"),)
    with pytest.raises(BadInput, match="zeroth; first; second"):
        list(experiments_of(["ordering"], "K", only=["third"]))


def test_an_experiment_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadInput, match="experiment"):
        list(experiments_of(["weather"], "K"))
