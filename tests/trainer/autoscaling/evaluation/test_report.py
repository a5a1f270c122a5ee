"""The report: one file that needs nothing beside it, with every plot the specification names."""

import re
from pathlib import Path

import pytest

from domain.errors import BadInput
from trainer.autoscaling.evaluation import report
from trainer.autoscaling.evaluation.contenders import contenders_of
from trainer.autoscaling.evaluation.report import PRICES_PER_HOUR, Extras, fronts, page
from trainer.autoscaling.evaluation.results import Evaluation, Results, evaluate
from trainer.autoscaling.evaluation.suite import TITLES, suite
from trainer.autoscaling.evaluation.summary import Summary, summarise

CONTENDERS = contenders_of(["rule=queue-rule", "75 % <b>=threshold"])
CASES = suite(["T2", "T4"], short=True, seeds=1)


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise(evaluate(CONTENDERS, CASES, Results(None)), "rule")


@pytest.fixture(scope="module")
def written(summary: Summary) -> str:
    extras = Extras(by_group=report.by_group(CONTENDERS, summary, CASES), comparison=report.comparison(summary))
    return page(summary, extras, {"made": "today"})


def test_it_needs_nothing_beside_it(written: str) -> None:
    assert not re.search(r'(src|href)="(?!#)', written)
    assert "@import" not in written
    assert "<script" not in written


def test_of_fewer_than_eight_cases_there_is_no_verdict_and_the_page_says_how_many(written: str) -> None:
    verdicts = written[written.index('<section id="verdicts">') : written.index('<section id="overview">')]
    assert "fewer than 8 cases" in verdicts
    assert " has 1 case" in verdicts
    assert "no verdict</span>" in verdicts
    assert re.findall(r'class="(?:chip )?(?:good|bad)"', written) == []


def test_the_families_are_explained_where_their_costs_are_compared(written: str) -> None:
    costs = written[written.index('<section id="overview">') :].partition("</section>")[0]
    assert all(f"{group}: {TITLES[group]}" in costs for group in ("T2", "T4"))


def test_ids_of_different_plots_do_not_meet(written: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', written)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', written)) <= set(ids)


def test_it_shows_fleets_with_queue_cores_and_cpu_for_each_group(written: str) -> None:
    assert written.count("and the jobs that wait") == 2
    assert written.count("Allocated cores") == 2
    assert written.count("per allocated core (mean") == 2
    assert written.count("jobs waiting") == 2


def test_the_published_experiment_stands_beside_the_closed_loop(written: str) -> None:
    assert "published, one run" in written
    assert "8.67" in written


def test_names_are_text_and_not_markup(written: str) -> None:
    assert "75 % <b>" not in written
    assert "75 % &lt;b&gt;" in written


def test_the_same_results_give_the_same_page(summary: Summary, written: str) -> None:
    extras = Extras(by_group=report.by_group(CONTENDERS, summary, CASES), comparison=report.comparison(summary))
    assert page(summary, extras, {"made": "today"}) == written


def test_the_front_trades_rent_for_waiting_as_waiting_gets_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "trainer.autoscaling.evaluation.report.settings",
        lambda case: {"queue rule": [f"queue-rule:horizon_s={h},idle_s=0" for h in (60, 300, 900, 2400)]},
    )
    (front,) = fronts(CASES[:1])
    assert len(front.chosen) == len(PRICES_PER_HOUR)
    waits = [tried.mean_wait_s for tried in front.chosen]
    rents = [tried.rent for tried in front.chosen]
    assert waits == sorted(waits, reverse=True)
    assert rents == sorted(rents)
    assert waits[0] > waits[-1]


def test_a_training_run_adds_its_curve(tmp_path: Path) -> None:
    run = tmp_path / "seed-3"
    run.mkdir()
    (run / "curve.csv").write_text(
        "update,steps,wall_s,cpu_s,best_cost,held_out/greedy\n1,50000,1,1,,\n2,100000,2,2,9.5,9.5\n3,150000,3,3,8.1,8.1\n"
    )
    plot = report.learning_curves([run], {"rule": 6.0})
    assert plot is not None
    assert "seed-3: greedy" in plot.svg


@pytest.mark.parametrize("content", [None, "update,steps,wall_s,cpu_s,best_cost\n1,50000,1,1,\n"])
def test_a_folder_without_a_curve_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "curve.csv").write_text(content)
    with pytest.raises(BadInput, match="--curves"):
        report.learning_curves([tmp_path], {})


def test_a_policy_that_ran_nowhere_is_named_with_the_reason(summary: Summary) -> None:
    done = evaluate(contenders_of(["rule=queue-rule", "pair=constant:1,1"]), CASES, Results(None))
    shown = page(summarise(Evaluation(done.rows, done.absences), "rule"), Extras(), {})
    assert "Not run" in shown
    assert "3 sizes" in shown
