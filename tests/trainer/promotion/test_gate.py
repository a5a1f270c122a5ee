"""The gate: what a challenger must keep, each rule on its own."""

import re
from dataclasses import replace

import pytest

from domain.errors import BadInput
from tests.golden import check_wording, figures
from trainer.promotion.gate import Limits, Trial, judge

LIMITS = Limits()


def trial(n: int, family: str = "T1", champion: float = 10.0, challenger: float = 9.0) -> Trial:
    return Trial(f"{family} {n}", family, f"{family}-{n}", 0, champion + n, challenger + n, 6000.0, 6000.0, False)


def test_cheaper_everywhere_passes() -> None:
    judgement = judge([trial(n) for n in range(10)], LIMITS)
    assert (judgement.passed, judgement.reasons) == (True, ())
    assert judgement.overall.probability_lower == 1.0


def test_the_same_costs_do_not_pass() -> None:
    judgement = judge([trial(n, challenger=10.0) for n in range(10)], LIMITS)
    assert not judgement.passed
    assert figures(judgement.reasons[0]) == [0.0, 95.0]


def test_cheaper_on_average_but_not_for_sure_does_not_pass() -> None:
    mixed = [trial(n, challenger=7.0 if n % 2 else 12.4) for n in range(8)]
    judgement = judge(mixed, LIMITS)
    assert judgement.overall.relative.mean < 0.0
    assert judgement.overall.probability_lower < 0.95
    assert not judgement.passed


@pytest.mark.parametrize(("worse", "passes"), [(10.3, True), (10.8, False)])
def test_one_family_more_than_five_percent_dearer_does_not_pass(worse: float, passes: bool) -> None:
    assert [reason.split(",")[0] for reason in dearer_family(worse)] == ([] if passes else ["it costs +8.0 % on T4"])


def dearer_family(worse: float) -> tuple[str, ...]:
    runs = [trial(n, "T1", challenger=5.0) for n in range(6)] + [
        replace(trial(n, "T4"), champion_cost=10.0, challenger_cost=worse) for n in range(6)
    ]
    judgement = judge(runs, LIMITS)
    assert judgement.passed is (not judgement.reasons)
    return judgement.reasons


def test_a_run_beyond_the_run_time_limit_does_not_pass_and_the_worst_is_named() -> None:
    runs = [trial(n) for n in range(6)]
    runs[2] = replace(runs[2], challenger_run_time_s=9060.0, entry_step=50)
    runs[3] = replace(runs[3], challenger_run_time_s=9000.0)
    (reason,) = judge(runs, LIMITS).reasons
    assert re.search(r"1\.5 .* T1 2 .* 50: 151 .* 100", reason)
    check_wording("promotion-gate", {"run time": reason, "family": dearer_family(10.8)[0], "no end": without_end()[0]})


def test_a_run_that_never_ends_does_not_pass() -> None:
    (reason,) = without_end()
    assert reason.endswith("T1 4")


def without_end() -> tuple[str, ...]:
    runs = [trial(n) for n in range(6)]
    runs[4] = replace(runs[4], challenger_truncated=True)
    return judge(runs, LIMITS).reasons


def test_entries_of_one_trace_are_no_further_evidence() -> None:
    alone = [trial(n, challenger=9.0 if n % 3 else 10.9) for n in range(6)]
    entered = [replace(run, entry_step=step) for run in alone for step in (0, 10, 20, 30)]
    once, often = judge(alone, LIMITS), judge(entered, LIMITS)
    assert often.overall == once.overall
    assert [f.trials for f in often.families] == [24]


def test_boot_seeds_of_a_window_are_no_further_evidence() -> None:
    alone = [trial(n, challenger=9.0 if n % 3 else 10.9) for n in range(6)]
    assert judge([*alone, *alone, *alone], LIMITS).overall == judge(alone, LIMITS).overall
    (reason,) = judge([trial(0)] * 18, LIMITS).reasons
    assert figures(reason) == [50.0, 95.0]


@pytest.mark.parametrize(("cost", "passes"), [(10.4, True), (10.8, False)])
def test_a_family_with_a_veto_counts_by_its_mean_alone(cost: float, passes: bool) -> None:
    own = [trial(n, "recent", challenger=9.5) for n in range(6)]
    short = [replace(trial(n, "T3"), champion_cost=10.0, challenger_cost=cost) for n in range(3)]
    judgement = judge([*own, *short], LIMITS, vetoes={"T3"})
    assert judgement.passed is passes
    assert judgement.overall == judge(own, LIMITS).overall
    assert [family.family for family in judgement.families] == ["T3", "recent"]
    noisy = [replace(one, challenger_cost=cost) for one, cost in zip(short, (5.0, 10.0, 11.0), strict=True)]
    assert judge([*own, *noisy], LIMITS, vetoes={"T3"}).passed


def test_nothing_to_judge_is_an_error() -> None:
    with pytest.raises(BadInput):
        judge([], LIMITS)
    with pytest.raises(BadInput):
        judge([trial(1, "T3")], LIMITS, vetoes={"T3"})


@pytest.mark.parametrize("wrong", [{"probability": 0.2}, {"worse": -0.1}, {"run_time_factor": 0.5}])
def test_limits_that_let_anything_pass_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        Limits(**wrong)
