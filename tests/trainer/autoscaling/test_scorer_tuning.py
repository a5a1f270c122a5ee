"""A scorer learns on one's own loads, is judged on later ones, and replaces what was there only if it is better."""

import math
import pickle
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from domain.errors import BadInput
from domain.observations.autoscaling_scorer import STATES
from domain.rules.queue_rule import RuleSetting
from domain.workload import Trace, make_trace
from simulator.autoscaling.branching import Weights
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution
from trainer.autoscaling import scorer
from trainer.autoscaling.lessons import (
    LEAST_WINDOWS,
    Loads,
    Map,
    OwnLessons,
    cut_out,
    loads_of,
    rule_for_loads,
    suite_lessons,
)
from trainer.autoscaling.scorer import HELD_OUT, THE_RULE, Judgement, Plan, Policy, Recipe, Scorer, own_plan
from trainer.autoscaling.scorer_runs import run
from trainer.kit.checkpoint import OtherConfiguration

LIVE = preset("live-like")
TINY = Recipe(rounds=(2, 2), explore=(0.1, 0.05), most=10, hidden=8, networks=2, batch=32)
DAY_S = 86_400.0


def log(hours: float, seed: int = 0, jobs_per_hour: int = 12, name: str = "log") -> Trace:
    rng = np.random.default_rng(seed)
    count = int(hours * jobs_per_hour)
    return make_trace(name, np.sort(rng.uniform(0.0, 3600.0 * hours, size=count)), rng.uniform(30.0, 900.0, size=count))


def test_long_logs_are_cut_into_days_and_the_later_ones_are_left_out() -> None:
    whole = log(24.0 * 20)
    loads = loads_of([whole])
    assert loads.window_s == DAY_S
    assert [trace.name for trace in loads.learnt] == [f"log#{k}" for k in range(12)]
    assert [trace.name for trace in loads.left_out] == [f"log#{k}" for k in range(12, 20)]
    assert sum(trace.jobs for trace in (*loads.learnt, *loads.left_out)) == whole.jobs
    (part,) = loads.parts
    assert part.jobs == sum(trace.jobs for trace in loads.learnt)
    assert all(trace.arrival_s.max() < DAY_S for trace in (*loads.learnt, *loads.left_out))


def test_short_logs_are_cut_into_sixteen_windows_of_an_hour_or_more() -> None:
    loads = loads_of([log(32.0)])
    assert loads.window_s == pytest.approx(2 * 3600.0, rel=0.01)
    assert (len(loads.learnt), len(loads.left_out)) == (10, 6)
    assert loads_of([log(10.0)]).window_s == 3600.0
    three = loads_of([log(4.0, k, name=f"log-{k}") for k in range(3)])
    assert (len(three.learnt), len(three.left_out)) == (6, 6)


def test_every_log_gives_its_later_windows() -> None:
    loads = loads_of([log(24.0 * 10, 1, name="a"), log(24.0 * 5, 2, name="b")])
    assert [trace.name for trace in loads.left_out] == ["a#6", "a#7", "a#8", "a#9", "b#3", "b#4"]
    assert [part.name for part in loads.parts] == ["a#0-6", "b#0-3"]


def test_logs_of_one_window_are_left_out_as_they_were_given() -> None:
    loads = loads_of([log(24.0, k, name=f"day-{k}") for k in range(10)])
    assert loads.window_s == DAY_S
    assert [trace.name for trace in loads.learnt] == [f"day-{k}#0" for k in range(6)]
    assert [trace.name for trace in loads.left_out] == [f"day-{k}#0" for k in range(6, 10)]


def test_too_few_windows_are_refused_with_how_many_there_are() -> None:
    with pytest.raises(BadInput) as refused:
        loads_of([log(5.0)])
    assert f"and {LEAST_WINDOWS} of each are needed" in str(refused.value)
    with pytest.raises(BadInput, match="arrive at fixed times"):
        loads_of([coevolution(1)])


def test_lessons_are_drawn_from_what_may_be_learnt_alone_and_alike_from_one_number() -> None:
    loads = loads_of([log(24.0 * 10)])
    lessons = OwnLessons(LIVE, RuleSetting(), loads)
    drawn = list(lessons(0, 12))
    again = list(pickle.loads(pickle.dumps(lessons))(3, 1))
    assert again[0].trace.digest == drawn[3].trace.digest
    assert len({lesson.trace.digest for lesson in drawn}) == 12
    assert {lesson.rule for lesson in drawn} == {RuleSetting()}
    shortest, longest = loads.parts[0].service_s.min(), loads.parts[0].service_s.max()
    for lesson in drawn:
        assert lesson.trace.arrival_s.max() < loads.window_s
        # Lengths of one lesson are moved together, so that their ratios are those of the log.
        assert lesson.trace.service_s.max() / lesson.trace.service_s.min() <= longest / shortest * (1 + 1e-9)


def test_a_cut_keeps_what_jobs_are() -> None:
    whole = make_trace("w", [0.0, 10.0, 20.0], [5.0, 6.0, 7.0], width=[1, 2, 4], ram_gb=[0.1, 0.2, 0.3])
    part = cut_out(whole, 10.0, 20.0, "part")
    assert (part.arrival_s.tolist(), part.service_s.tolist(), part.width.tolist()) == ([0.0], [6.0], [2])
    assert part.ram_gb.tolist() == [0.2]


def loads() -> Loads:
    return loads_of([log(10.0)])


def test_the_rule_is_tuned_on_windows_that_are_learnt_from() -> None:
    found = rule_for_loads(LIVE, loads(), 0.0)
    assert found.job_core_s == 0.0
    assert rule_for_loads(LIVE, loads(), 120.0).job_core_s == 120.0
    worst = replace(found, horizon_s=1920.0 if found.horizon_s < 500.0 else 60.0)
    costs = [scorer.costs_of(LIVE, rule, loads().learnt, [THE_RULE], 1, 1, map).sum() for rule in (found, worst)]
    assert costs[0] <= costs[1]


def as_found(found: Scorer, spread: Map) -> Scorer:
    return found


@cache
def general() -> Scorer:
    with TemporaryDirectory() as folder:
        return run(Plan(TINY, 0, partial(suite_lessons, world=LIVE), {}, as_found), Path(folder))


@pytest.fixture(scope="module")
def start() -> Scorer:
    return general()


def judged(monkeypatch: pytest.MonkeyPatch, start: Scorer | None, share: float, noise: float = 0.0) -> Scorer:
    """Judge weights that cost `share` of what was before, give or take `noise`, on every window."""
    found = replace(general(), least=np.full(STATES, -9.0, dtype=np.float32))
    rng = np.random.default_rng(1)

    def costs(*given: object) -> np.ndarray:
        policies: list[Policy] = given[3]  # type: ignore[assignment]
        windows = len(given[2])  # type: ignore[arg-type]
        rows = np.ones((len(policies), windows))
        if len(policies) == 3:
            rows[0] = share + noise * rng.standard_normal(windows)
        return rows

    monkeypatch.setattr(scorer, "costs_of", costs)
    return Judgement(LIVE, RuleSetting(), loads(), start)(found, map)


def test_better_weights_replace_the_old_ones(monkeypatch: pytest.MonkeyPatch, start: Scorer) -> None:
    new = judged(monkeypatch, start, 0.95, 0.001)
    assert new.figures["own/used"] == 1.0
    assert new.figures["own/gain"] == pytest.approx(0.05, abs=0.002)
    assert new.figures["own/sure"] > 0.9999
    assert new.figures[HELD_OUT] == new.figures["own/ratio_after"]
    assert new.least[0] == -9.0, "ranges are those of both trainings"
    assert new.greatest[0] >= start.greatest[0]


@pytest.mark.parametrize(("share", "noise"), [(1.0, 0.0), (1.02, 0.001), (0.999, 0.2)])
def test_weights_that_are_no_better_or_not_surely_leave_the_old_ones(
    monkeypatch: pytest.MonkeyPatch, start: Scorer, share: float, noise: float
) -> None:
    kept = judged(monkeypatch, start, share, noise)
    assert kept.figures["own/used"] == 0.0
    assert kept.digest == start.digest
    assert kept.margin == start.margin
    assert kept.figures[HELD_OUT] == kept.figures["own/ratio_before"]


def test_without_weights_before_it_is_judged_beside_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, None, 1.1)
    assert found.figures["own/used"] == 0.0
    assert found.figures["own/ratio_before"] == 1.0
    assert found.figures["own/ratio_after"] == pytest.approx(1.1)


def test_a_run_on_own_loads_leaves_a_model_and_says_what_was_found(tmp_path: Path, start: Scorer) -> None:
    plan = own_plan(LIVE, loads(), RuleSetting(240.0), TINY, 0, start)
    found = run(plan, tmp_path)
    names = {name for name in found.figures if name.startswith("own/")}
    assert {"own/gain", "own/sure", "own/used", "own/simulator_steps", "own/horizon_s"} <= names
    assert found.figures["own/horizon_s"] == 240.0
    shapes: list[Weights] = list(found.weights)
    assert [part.shape for part in shapes] == [part.shape for part in start.weights]
    assert math.isfinite(found.figures[HELD_OUT])
    with pytest.raises(OtherConfiguration, match=r"lessons\.start"):
        run(own_plan(LIVE, loads(), RuleSetting(240.0), TINY, 0, None), tmp_path, resume=True)
