"""The results table: bit for bit, row by row, taken up where it was left."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from domain.errors import BadInput
from domain.workload import make_trace
from simulator.autoscaling.world_file import preset
from trainer.autoscaling.evaluation import results
from trainer.autoscaling.evaluation.contenders import contenders_of
from trainer.autoscaling.evaluation.results import Results, Row, evaluate, read_rows, run_episode
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.policy_names import policy_of
from trainer.kit.jobs import Workers

TRACE = make_trace("ten jobs", [0.0] * 10, [200.0 / 3.0] * 10)


def cases(count: int) -> list[Case]:
    return [Case(f"T1 boot {n}", "T1", "training", preset("train-text"), TRACE, n) for n in range(count)]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    results = Results(path)
    for row in rows:
        results.add(row)


@pytest.fixture
def row() -> Row:
    case = cases(1)[0]
    return Row.of("nothing", "nothing", case, run_episode(policy_of("nothing"), case))


def test_a_row_reads_back_bit_for_bit(tmp_path: Path, row: Row) -> None:
    path = tmp_path / "rows.csv"
    odd = replace(row, policy='a "quoted", label', cost=0.1 + 0.2, idle_worst_min=7.25)
    write_rows(path, [odd])
    assert read_rows(path) == [odd]


def test_finished_rows_are_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    contenders = contenders_of(["nothing", "queue-rule"])
    first = evaluate(contenders, cases(3), Results(path))
    before = path.read_bytes()
    counted: list[tuple[str, int]] = []
    again = evaluate(contenders, cases(3), Results(path), on_cases=lambda label, n: counted.append((label, n)))
    assert [(r.policy, r.case, r.cost) for r in again.rows] == [(r.policy, r.case, r.cost) for r in first.rows]
    assert path.read_bytes() == before
    assert sum(n for _, n in counted) == 6


def test_an_interrupted_file_loses_its_cut_line_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    evaluate(contenders_of(["nothing"]), cases(3), Results(path))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    evaluate(contenders_of(["nothing"]), cases(3), Results(path))
    assert path.read_bytes() == whole


def test_rows_of_other_code_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv"
    evaluate(contenders_of(["nothing"]), cases(1), Results(path))
    monkeypatch.setattr(results, "code_version", lambda: "another code")
    evaluate(contenders_of(["nothing"]), cases(1), Results(path))
    assert [row.code == "another code" for row in read_rows(path)] == [False, True]


@pytest.mark.parametrize(
    ("old", "new", "named"), [("policy,", "polity,", "columns"), ("nothing,", "nothing,nothing,", "line 2")]
)
def test_a_file_that_is_no_results_table_is_refused(tmp_path: Path, row: Row, old: str, new: str, named: str) -> None:
    path = tmp_path / "rows.csv"
    write_rows(path, [row])
    path.write_text(path.read_text("utf-8").replace(old, new, 1), "utf-8")
    with pytest.raises(BadInput, match=named):
        read_rows(path)


def test_a_wrong_value_is_named_with_line_and_column(tmp_path: Path, row: Row) -> None:
    path = tmp_path / "rows.csv"
    write_rows(path, [row])
    path.write_text(path.read_text("utf-8").replace(f",{row.cost!r},", ",cheap,", 1), "utf-8")
    with pytest.raises(BadInput) as refused:
        read_rows(path)
    assert refused.value.field == "rows.csv line 2: cost"


@pytest.mark.exhaustive
def test_two_processes_find_the_same_as_one(tmp_path: Path) -> None:
    contenders = contenders_of(["queue-rule", "threshold"])
    alone = evaluate(contenders, cases(9), Results(None))
    together = evaluate(contenders, cases(9), Results(tmp_path / "rows.csv"), workers=Workers(2))
    assert together.rows == alone.rows
