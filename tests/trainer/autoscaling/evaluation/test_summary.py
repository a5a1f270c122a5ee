"""The summary: means, paired comparisons and verdicts out of rows."""

import json
from dataclasses import replace

import pytest

from domain.errors import BadInput
from domain.workload import make_trace
from simulator.autoscaling.world_file import preset
from trainer.autoscaling.evaluation.results import Absence, Evaluation, Row, run_episode
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.evaluation.summary import Summary, summarise
from trainer.autoscaling.policy_names import policy_of

CASE = Case("T1 boot 0", "T1", "training", preset("train-text"), make_trace("jobs", [0.0] * 20, [300.0] * 20), 0)
ROW = replace(Row.of("rule", "queue-rule", CASE, run_episode(policy_of("nothing"), CASE)), added=(1, 0, 0))
THRESHOLD = "threshold:high=0.75,low=0.75,periods=1,..."


def rows(policy: str, family: str, costs: list[float], **more: object) -> list[Row]:
    return [
        replace(ROW, policy=policy, family=family, case=f"{family} {n}", case_key=f"{family}-{n}", cost=cost, **more)  # type: ignore[arg-type]
        for n, cost in enumerate(costs)
    ]


def summary(*groups: list[Row], reference: str = "rule") -> Summary:
    return summarise(Evaluation(tuple(row for group in groups for row in group), ()), reference)


def test_a_policy_is_compared_on_the_cases_that_both_have_run() -> None:
    found = summary(rows("rule", "T1", [10.0, 20.0, 30.0]), rows("new", "T1", [9.0, 18.0]))
    result = found.result("new", "T1")
    assert result is not None
    assert result.against is not None
    assert result.against.relative.mean == pytest.approx(-0.1)
    assert (result.cases, result.cost.mean) == (2, 13.5)


def test_the_verdict_names_the_family_where_it_stands_worst() -> None:
    found = summary(
        rows("rule", "T1", [10.0] * 3),
        rows("rule", "T6 burst x10", [10.0] * 3),
        rows("new", "T1", [8.0] * 3),
        rows("new", "T6 burst x10", [10.6] * 3),
    )
    reference, verdict = found.verdicts
    assert (verdict.worst_family, verdict.never_worse) == ("T6 burst x10", False)
    assert verdict.worst_relative == pytest.approx(0.06)
    assert verdict.overall is not None
    assert verdict.overall.relative.mean == pytest.approx(-0.07)
    assert (reference.overall, reference.never_worse) == (None, None)


def test_a_policy_that_took_part_in_some_families_only_is_marked() -> None:
    found = summary(rows("rule", "T1", [10.0]), rows("rule", "T4", [10.0]), rows("ramp", "T4", [9.0]))
    assert [(v.policy, v.families, v.partial) for v in found.verdicts] == [("rule", 2, False), ("ramp", 1, True)]


@pytest.mark.parametrize(
    ("minutes", "released", "kept"), [(15.0, True, True), (16.0, True, False), (5.0, False, False), (None, True, None)]
)
def test_the_minimum_fleet_has_to_be_reached_within_a_quarter_of_an_hour(
    minutes: float | None, released: bool, kept: bool | None
) -> None:
    (verdict,) = summary(
        rows("rule", "T6 idle day", [1.0, 1.0], idle_worst_min=minutes, idle_released=released)
    ).verdicts
    assert verdict.shuts_down is kept


def test_on_the_closed_loop_rent_and_run_time_are_set_against_each_published_threshold() -> None:
    found = summary(
        rows("rule", "T4", [10.0] * 2, rent=9.0, run_time_s=9000.0),
        rows("threshold", "T4", [12.0] * 2, rent=10.0, run_time_s=10_000.0, policy_key=THRESHOLD),
    )
    (trade,) = found.trades
    assert (trade.policy, trade.reference) == ("rule", "threshold")
    assert trade.rent.relative.mean == pytest.approx(-0.1)
    assert trade.run_time.relative.mean == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("policy_key", "more", "why"),
    [
        ("threshold:high=0.75", {"truncated": True}, "cut off in 3 of 3 cases"),
        ("threshold:high=0.75", {"added": (0, 0, 0)}, "changed nothing"),
        ("constant:1,0,0", {"added": (0, 0, 0)}, ""),
        ("model.onnx", {"added": (0, 0, 0)}, ""),
    ],
)
def test_a_policy_that_is_stuck_is_named_and_left_out_of_the_ratios(
    policy_key: str, more: dict[str, object], why: str
) -> None:
    other = rows("other", "T4", [90.0] * 3, policy_key=policy_key, **more)
    for reference in ("rule", "other"):
        found = summary(rows("rule", "T4", [10.0] * 3), other, reference=reference)
        result = found.result("other", "T4")
        assert result is not None
        assert result.stuck == why
        compared = [s.against for s in found.results if s.against] + [v.overall for v in found.verdicts if v.overall]
        assert bool(compared) == (why == "")
        assert (found.trades == ()) == (why != "" or not policy_key.startswith("threshold"))
        verdict = next(v for v in found.verdicts if v.policy == "other")
        assert (verdict.never_worse is False) == (bool(more.get("truncated")) or (why == "" and reference == "rule"))


def test_families_stand_in_the_order_of_the_groups() -> None:
    found = summary(rows("rule", "T6 burst x10", [1.0]), rows("rule", "T2", [1.0]), rows("rule", "T5 nasa", [1.0]))
    assert found.families == ("T2", "T5 nasa", "T6 burst x10")


def test_it_is_data_for_machines() -> None:
    evaluated = Evaluation(tuple(rows("rule", "T1", [1.0, 2.0])), (Absence("plan", "T1 0", "T1", "too long"),))
    data = json.loads(json.dumps(summarise(evaluated, "rule").as_data(), allow_nan=False))
    assert data["standings"][0]["cost"]["mean"] == 1.5
    assert data["absences"][0]["reason"] == "too long"
    assert data["published"]["learned"]["rent"] == 8.67


def test_a_reference_that_did_not_run_is_refused() -> None:
    with pytest.raises(BadInput, match="choose one of rule"):
        summary(rows("rule", "T1", [1.0]), reference="magic")
