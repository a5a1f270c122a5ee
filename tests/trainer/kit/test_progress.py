"""What a run tells: a curve that a resumed run continues, TensorBoard scalars, and the goals beside the cost."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from domain.errors import BadInput
from tests.golden import check_wording
from trainer.kit.progress import (
    CURVE_FILE,
    LOG_FILE,
    Bar,
    Curve,
    Lines,
    Listeners,
    Progress,
    TensorBoard,
    Watch,
    bars,
    column,
    headline,
    log_of,
    newest_line,
    progress_lines,
    read_curve,
)

COST = "held_out/greedy"
GOALS = {"threshold": 27.0, "queue rule": 20.68}


def moment(update: int, best: float | None = None, **figures: float) -> Progress:
    named = {name.replace("__", "/"): value for name, value in figures.items()}
    return Progress(update, 100 * update, 1000, 1.5 * update, 3.0 * update, named, best)


def test_the_curve_has_a_row_per_update_and_a_column_per_figure_even_one_that_comes_late(tmp_path: Path) -> None:
    curve = Curve(tmp_path)
    curve(moment(1, loss__policy=0.5))
    curve(moment(2, best=21.5, loss__policy=0.25, held_out__greedy=21.5))
    curve(moment(3, best=21.5, loss__policy=0.1))
    rows = read_curve(tmp_path / CURVE_FILE)
    assert [row["update"] for row in rows] == ["1", "2", "3"]
    assert column(rows, "loss/policy") == [(100, 0.5), (200, 0.25), (300, 0.1)]
    assert column(rows, COST) == [(200, 21.5)]
    assert column(rows, "best_cost") == [(200, 21.5), (300, 21.5)]


def test_a_resumed_curve_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    curve = Curve(tmp_path)
    for update in (1, 2, 3):
        curve(moment(update, loss__policy=float(update)))
    Curve(tmp_path, resumed_at=2)(moment(3, loss__policy=33.0))
    assert column(read_curve(tmp_path / CURVE_FILE), "loss/policy") == [(100, 1.0), (200, 2.0), (300, 33.0)]


def test_a_new_run_begins_a_new_curve(tmp_path: Path) -> None:
    Curve(tmp_path)(moment(1, loss__policy=1.0))
    Curve(tmp_path)
    assert read_curve(tmp_path / CURVE_FILE) == []


def test_a_file_that_is_no_curve_is_refused(tmp_path: Path) -> None:
    (tmp_path / CURVE_FILE).write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match="it is not a learning curve"):
        Curve(tmp_path, resumed_at=1)


def test_figures_stand_in_tensorboard_over_environment_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    board(moment(1, loss__policy=0.5))
    board(moment(2, best=21.5, held_out__greedy=21.5))
    board.close()
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(read.Tags()["scalars"]) == ["held_out/best", COST, "loss/policy"]
    assert [(event.step, event.value) for event in read.Scalars(COST)] == [(200, 21.5)]


def test_the_headline_shows_the_goals_and_which_are_passed() -> None:
    passed = moment(2, best=21.5, held_out__greedy=22.25)
    lines = {"before": headline(moment(1), GOALS, COST), "after": headline(passed, GOALS, COST)}
    check_wording("training-headline", lines)


def test_lines_are_written_for_phases_evaluations_notes_and_after_a_while() -> None:
    written: list[str] = []
    times = iter((1.0, 2.0, 3.0, 18.0, 19.0))
    lines = Lines("seed 3", {"threshold": 27.0}, COST, written.append, lambda: next(times))
    lines.phase("compiling")
    assert written == ["seed 3: compiling"], "the phase comes before the first update"
    lines(moment(1, loss__policy=1.0))
    lines(moment(2, best=26.0, held_out__greedy=26.0))
    lines(Progress(3, 300, 1000, 3.5, 1.0, note="collapsed: restarted at a learning rate of 0.0005"))
    lines(moment(4, best=26.0, loss__policy=1.0))
    lines(moment(11, best=26.0, held_out__greedy=28.0))
    assert [line[8:13] for line in written] == ["compi", "100 o", "200 o", "colla", "400 o", "1,100"]
    assert written[-1].startswith("seed 3: 1,100 of 1,100 steps (100 %)"), "never more than all of them"
    check_wording("training-lines", {"written": "\n".join(written)})


def test_work_writes_lines_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with bars(quiet=False) as shown:
        shown.add_task("tuning", total=None)
    assert capsys.readouterr().err == "tuning ...\n", "at once, before anything is done"
    with bars(quiet=True) as shown:
        shown.add_task("tuning", total=None)
    assert capsys.readouterr() == ("", "")


def test_lines_of_work_name_each_task_as_it_begins_and_the_present_one_every_15_s() -> None:
    written: list[str] = []
    now = [0.0]
    with progress_lines(written.append, lambda: now[0]) as shown:
        rule, release = (shown.add_task(label, total=3) for label in ("rule", "release"))
        assert written == ["rule: 0 of 3"], "the others are not begun"
        for now[0] in (1.0, 2.0, 3.0):
            shown.advance(rule)
        for now[0] in (4.0, 18.0, 20.0):
            shown.advance(release)
        phase = shown.add_task("", total=None)
        shown.update(phase, description="report")
    assert [line.partition(",")[0] for line in written] == [
        *("rule: 0 of 3", "release: 1 of 3", "release: 3 of 3", "report ..."),
    ]


def test_a_runs_log_has_its_lines_with_the_time_and_goes_on_where_the_run_does(tmp_path: Path) -> None:
    assert newest_line(tmp_path) == ""
    log_of(tmp_path, resumed=False)("seed 3: compiling")
    log_of(tmp_path, resumed=True)("seed 3: 200 of 1,000 steps (20 %)")
    first, second = (tmp_path / LOG_FILE).read_text("utf-8").splitlines()
    assert datetime.fromisoformat(first.partition(" ")[0]).utcoffset() == timedelta(0)
    assert second.endswith("Z seed 3: 200 of 1,000 steps (20 %)")
    assert newest_line(tmp_path) == "seed 3: 200 of 1,000 steps (20 %)"
    log_of(tmp_path, resumed=False)
    assert newest_line(tmp_path) == ""


def test_runs_of_other_processes_are_followed_by_the_lines_of_their_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [(f"seed {seed}", tmp_path / str(seed), 1000) for seed in (0, 1)]
    with Watch(runs, GOALS, COST, live=False) as watch:
        watch.look()
        runs[1][1].mkdir()
        log = log_of(runs[1][1], resumed=False)
        curve = Curve(runs[1][1])
        log("seed 1: compiling")
        watch.look()
        for update, best in ((1, None), (2, 26.0)):
            curve(moment(update, best=best))
            log(f"seed 1: {update}00 of 1,000 steps")
            watch.look()
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["seed 1: compiling", "seed 1: 200 of 1,000 steps"], "at once, and then for a new best cost"


def test_the_bar_goes_to_standard_error_and_keeps_the_newest_cost(capsys: pytest.CaptureFixture[str]) -> None:
    with Listeners([Bar("seed 0", GOALS, COST)]) as listener:
        listener.phase("compiling")
        listener(moment(1, best=19.0, held_out__greedy=19.0))
        listener(moment(11, best=19.0, loss__policy=1.0))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "100 %" in shown.err
    assert "110 %" not in shown.err
    assert "cost 19.00" in " ".join(shown.err.split())
