"""An evaluation: paired on the same episodes, checked, the same for any number of workers, silent on few episodes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.deferral.jobs import objective
from simulator.deferral.scenarios import SCENARIOS
from simulator.deferral.world import play
from trainer.deferral import evaluation
from trainer.deferral.evaluation import STANDARD, Evaluation, Subject, checks_of, contenders_of, day_of, evaluate
from trainer.deferral.exact import ScheduleWrong
from trainer.deferral.policies import policy_of
from trainer.deferral.report import PAPER_1, PAPER_2, PAPER_4, TrainingFigures, write
from trainer.kit.jobs import Workers

SHORT = Subject("short", SCENARIOS["valley"].model_copy(update={"steps": 12}))
PAIR = [("two", "fifo:prefix"), ("two", "sjf:prefix")]


@pytest.fixture(scope="module")
def done() -> Evaluation:
    return evaluate(SHORT, contenders_of(PAIR), range(3))


def test_figures_are_those_of_the_schedules(done: Evaluation) -> None:
    for number, seed in enumerate(done.seeds):
        drawn = SHORT.episode(seed)
        for text in ("fifo", "knapsack", "optimum"):
            score = objective(drawn.jobs, policy_of(text).schedule(drawn, None)[0], drawn.capacity)
            own = done.of(text)
            assert own is not None
            assert (own.totals[number], own.violation[number]) == (score.total, score.violation)
            assert own.delay_charge[number] == score.delay_charge


def test_differences_are_paired_with_fifo_that_skips(done: Evaluation) -> None:
    own, reference, best = (done.of(name) for name in ("knapsack", "fifo:skip", "optimum"))
    assert own is not None
    assert reference is not None
    assert best is not None
    assert own.to_reference.mean == pytest.approx((own.totals - reference.totals).mean())
    assert own.to_reference.low <= own.to_reference.mean <= own.to_reference.high
    assert own.to_optimum == pytest.approx(own.total / best.total)
    assert best.to_optimum == 1.0


def test_texts_of_one_label_are_seeds_of_one_method(done: Evaluation) -> None:
    own, fifo, sjf = (done.of(name) for name in ("two", "fifo", "sjf"))
    assert own is not None
    assert fifo is not None
    assert sjf is not None
    np.testing.assert_allclose(own.totals, (fifo.totals + sjf.totals) / 2)
    assert own.spread == pytest.approx(abs(fifo.total - sjf.total) / np.sqrt(2))


@pytest.mark.exhaustive
def test_workers_change_nothing(done: Evaluation) -> None:
    """A10."""
    again = evaluate(SHORT, contenders_of(PAIR), range(3), workers=Workers(2))
    assert json.dumps(again.as_data()) == json.dumps(done.as_data())


def test_nothing_is_said_to_be_kept_on_few_episodes(done: Evaluation) -> None:
    few = checks_of([done])
    assert few
    assert {check.kept for check in few} == {None}


def test_enough_episodes_have_a_verdict(done: Evaluation) -> None:
    """Whatever the figures are of: eight times the same, held to what `valley` asks."""
    from dataclasses import replace

    many = tuple(replace(one, totals=np.full(8, one.total)) for one in done.figures)
    asked = "knapsack on valley: total at least 3665, seeds 0 to 99"
    for seeds, verdict in ((range(100), False), (range(1, 101), None)):
        valley = replace(done, subject=Subject("valley", SCENARIOS["valley"]), seeds=tuple(seeds), figures=many)
        kept = {check.asked: check.kept for check in checks_of([valley])}
        assert kept[asked] is verdict
        assert kept["knapsack on valley: not below fifo:skip in the mean"] is True


def test_a_schedule_that_breaks_a_rule_ends_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Early:
        text, needs_forecast = "fifo", False

        def schedule(self, drawn: object, forecast: object) -> tuple[np.ndarray, int]:
            return np.zeros(SHORT.episode(0).jobs.cores.size, dtype=np.int64), 0

    monkeypatch.setattr(evaluation, "policy_of", lambda text: Early())
    with pytest.raises(ScheduleWrong, match="fifo on short, seed 0"):
        evaluate(SHORT, contenders_of([]), [0])


def test_a_day_has_the_work_of_each_hour() -> None:
    """What runs sums up to the core-steps within the horizon; what is deferred is part of it."""
    from domain.rules.deferral.choosing import ordered

    drawn = SHORT.episode(4)
    start = play(drawn, ordered("fifo", "skip"))
    day = day_of(drawn, start)
    jobs = drawn.jobs
    inside = np.minimum(jobs.duration, drawn.steps - start) * jobs.cores
    assert day.running.sum() == inside[start >= 0].sum()
    assert day.deferred.sum() == inside[start > jobs.earliest].sum()
    assert day.capacity.sum() == drawn.capacity.sum()


def test_a_forecast_covers_what_it_promises() -> None:
    """Ten hours of three weeks are few: within a fifth."""
    week = Subject("week", SCENARIOS["valley"].model_copy(update={"steps": 100}))
    found = evaluation._below(week.episode(0), week.forecast())
    shares = found[:-1] / found[-1]
    assert np.abs(shares - np.array(evaluation.LEVELS)[:, None]).max() < 0.2
    assert found[-1].tolist() == [100.0 - ahead for ahead in evaluation.AHEAD]


def test_the_report_has_the_papers_tables_and_the_day(done: Evaluation, tmp_path: Path) -> None:
    from dataclasses import replace

    named = [
        replace(done, subject=Subject(name, SCENARIOS[name]))
        for name in ("valley", "realtime", "core2", "core3", "dur1", "dur2")
    ]
    files = write(tmp_path, named)
    page = files[0].read_text("utf-8")
    for words in ("Table 1", "Table 2", "Table 4", "3,475.4", "9,593.7", "runs deferred", "Coverage of the forecast"):
        assert words in page
    assert {"report.html", "summary.json", "valley-day.svg"} <= {file.name for file in files}
    again = write(tmp_path / "again", named[:1])
    drawing = "valley-day.svg"
    assert (tmp_path / "again" / drawing).read_bytes() == (tmp_path / drawing).read_bytes()
    assert len(again) == 3


def test_a_network_without_a_model_file_is_shown_as_its_training_reported_it(done: Evaluation, tmp_path: Path) -> None:
    from dataclasses import replace

    valley = replace(done, subject=Subject("valley", SCENARIOS["valley"]))
    seeds = [
        TrainingFigures("PPO-MLP", {"valley": {"utilisation": 3500.0, "delay_charge": 100.0, "total": total}})
        for total in (3390.0, 3410.0)
    ]
    page = write(tmp_path, [valley], seeds)[0].read_text("utf-8")
    (row,) = [line for line in page.splitlines() if "<td>PPO</td>" in line and "3,377.5" in line]
    assert "<td>3,400.0*</td><td>14.1</td>" in row


def test_the_papers_tables_name_the_same_policies() -> None:
    assert [name for name, *_ in PAPER_1] == list(PAPER_2) == list(PAPER_4)


def test_labels_and_seeds_are_checked() -> None:
    with pytest.raises(BadInput, match="these are taken"):
        contenders_of([(STANDARD[0], "sjf")])
    with pytest.raises(BadInput, match="choose from"):
        contenders_of([("mine", "lifo")])
    with pytest.raises(BadInput, match="each once"):
        evaluate(SHORT, contenders_of([]), [1, 1])
    with pytest.raises(BadInput, match="0 windows"):
        Subject("trace", None).episode(0)
