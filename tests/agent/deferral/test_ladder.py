"""The ladder: the first policy that answers in time and with what fits decides; no policy is believed unchecked."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from agent.deferral.decision import DeferralPart
from agent.deferral.ladder import Floats, Ladder, LearnedRung, Starts, ladder_of, wait_of
from agent.deferral.model import ScoreModel
from agent.deferral.records import JobRecord
from agent.deferral.settings import DeferralSettings
from agent.deferral.views import seen_by
from agent.rehearsal.sections import agent_at
from domain.errors import PolicyFailure
from domain.rules.deferral.choosing import ScoresUnusable, View
from domain.rules.deferral.jobs import Ints
from tests.agent.deferral.pools import START, STEP
from trainer.promotion.directory import ModelsWriter

PATH = np.full(9, 10.0)


def view(*sizes: tuple[int, int], free: int = 10) -> View:
    jobs = [
        JobRecord(f"j{n}", n + 1, "", cores, duration, STEP, STEP + 3, STEP, 0.0)
        for n, (cores, duration) in enumerate(sizes)
    ]
    return seen_by(jobs, (), STEP, free, 3600).view


THREE = view((6, 1), (6, 3), (4, 2))


def starting(*positions: int) -> Starts:
    return Starts(np.array(positions, dtype=np.int64))


def ladder(rung: object, first: str = "learned", within_ms: int = 5000) -> Ladder:
    settings = DeferralSettings(learned_within_ms=within_ms)
    return ladder_of(settings, first, {"learned": rung}, {})  # type: ignore[dict-item]  # what no rung should be


def test_the_first_that_answers_decides() -> None:
    chosen = ladder(lambda view, path, budget_s: starting(0)).decide(THREE, PATH)
    assert (chosen.policy, chosen.positions.tolist(), chosen.fell_back) == ("learned", [0], False)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (starting(0, 1), "it starts 12 cores where 10 are free"),
        (starting(0, 0), "it starts a job twice"),
        (starting(3), "it starts a job outside the 3 candidates"),
        (starting(-1), "outside the 3"),
        (Starts(np.array([0.5])), "not a list of positions"),
        (Starts(np.array([[0]])), "not a list of positions"),
        (None, "it has no answer"),
        ([0], "its answer is none: AttributeError"),
        (Starts([[0], [1, 2]]), "its answer is none: ValueError"),  # type: ignore[arg-type]
    ],
)
def test_what_may_not_be_is_passed_over(answer: Starts | None, why: str) -> None:
    chosen = ladder(lambda view, path, budget_s: answer).decide(THREE, PATH)
    assert (chosen.policy, chosen.positions.tolist()) == ("rolling", [1, 2])
    assert why in chosen.tried[0].failure
    assert chosen.fell_back


def test_one_that_raises_is_passed_over() -> None:
    def raising(view: View, path: Floats, budget_s: float) -> Starts:
        raise PolicyFailure("no model is in use")

    chosen = ladder(raising).decide(THREE, PATH)
    assert chosen.policy == "rolling"
    assert chosen.tried[0].failure == "PolicyFailure: no model is in use"


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_let_the_knapsack_decide(score: float) -> None:
    def unusable(view: View, path: Floats, budget_s: float) -> Starts:
        raise ScoresUnusable("1 of 3 scores are not finite")

    def given(view: View, path: Floats, budget_s: float) -> Starts:
        return Starts(np.array([0]), np.array([1.0, score, 0.0]))

    for rung in (unusable, given):
        chosen = ladder(rung).decide(THREE, PATH)
        assert [one.policy for one in chosen.tried] == ["learned", "knapsack"]
        assert chosen.positions.tolist() == [1, 2]


@pytest.mark.parametrize("scores", [[1.0], [1.0, 2.0, 3.0, 4.0], [[1.0, 2.0, 3.0]]])
def test_scores_of_other_jobs_let_the_knapsack_decide(scores: list[float]) -> None:
    chosen = ladder(lambda view, path, budget_s: Starts(np.array([0]), np.array(scores))).decide(THREE, PATH)
    assert (chosen.policy, [one.policy for one in chosen.tried]) == ("knapsack", ["learned", "knapsack"])
    assert "for 3 jobs" in chosen.tried[0].failure


def test_a_model_that_was_given_up_leaves_later_steps_to_the_rolling_plan(tmp_path: Path) -> None:
    rung = LearnedRung("night", DeferralSettings(), ModelsWriter(tmp_path))
    rung._model = ScoreModel("0" * 64, None, None)  # type: ignore[arg-type]  # none of it is asked
    rung._model.fault = "3 of 9 scores are not finite"
    chosen = ladder(rung).decide(THREE, PATH)
    assert (chosen.policy, chosen.tried[0].failure) == ("rolling", "PolicyFailure: 3 of 9 scores are not finite")


def test_one_that_hangs_is_passed_over_and_not_asked_again_before_it_ends() -> None:
    until = threading.Event()
    asked: list[int] = []

    def hanging(view: View, path: Floats, budget_s: float) -> Starts:
        asked.append(1)
        until.wait(30.0)
        return starting(0)

    own = ladder(hanging, within_ms=50)
    first, second = own.decide(THREE, PATH), own.decide(THREE, PATH)
    until.set()
    assert first.tried[0].failure == "it did not answer within 50 ms"
    assert second.tried[0].failure == "it has not ended since it was asked last"
    assert (first.policy, second.policy, len(asked)) == ("rolling", "rolling", 1)


def test_a_plan_is_awaited_for_longer_than_its_processor_time() -> None:
    def slow(view: View, path: Floats, budget_s: float) -> Starts:
        time.sleep(3.0 * budget_s)
        return starting(0)

    chosen = ladder_of(DeferralSettings(rolling_within_ms=100), "rolling", {"rolling": slow}, {}).decide(THREE, PATH)
    assert (chosen.policy, chosen.positions.tolist()) == ("rolling", [0])


def test_no_wait_holds_up_a_step() -> None:
    waits = [wait_of(*of) for of in (("learned", 0.05), ("rolling", 0.2), ("rolling", 2.0), ("rolling", 10.0))]
    assert waits == [0.05, 2.0, 5.0, 10.0]


def test_without_a_thread_to_spare_the_knapsack_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    chosen = ladder(lambda view, path, budget_s: starting(0)).decide(THREE, PATH)
    assert (chosen.policy, chosen.fell_back) == ("knapsack", True)
    assert all("can't start new thread" in one.failure for one in chosen.tried[:-1])


def test_nothing_is_asked_without_jobs_or_room() -> None:
    def never(view: View, path: Floats, budget_s: float) -> Starts:
        raise AssertionError

    for nothing in (view(), view((1, 1), free=0), view((1, 1), free=-5)):
        chosen = ladder(never).decide(nothing, PATH)
        assert (chosen.positions.size, chosen.tried, chosen.fell_back) == (0, (), False)


def test_the_knapsack_leaves_what_is_too_large_to_first_come() -> None:
    many = view(*[(60_000, 1)] * 40, *[(1, 1)] * 40, free=1_000_000)
    chosen = ladder(None, "knapsack").decide(many, PATH)
    assert [one.policy for one in chosen.tried] == ["knapsack", "fifo"]
    assert int(many.cur.cores[chosen.positions].sum()) <= 1_000_000


def test_an_answer_of_one_type_is_an_answer() -> None:
    found: Ints = np.array([2, 0], dtype=np.int64)
    assert ladder(lambda view, path, budget_s: Starts(found)).decide(THREE, PATH).positions.tolist() == [0, 2]


def test_a_policy_that_cannot_run_is_warned_of_at_the_start_and_stays_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.deferral.rolling.find_spec", lambda name: None)
    given = {"TRIMTAB_DEFERRALS__night__SHADOW": "fifo", "TRIMTAB_DEFERRALS__day__POLICY": "knapsack"}
    with capture_logs() as logs, agent_at(START, tmp_path, "http://127.0.0.1:1", "observe", given) as (agent, _):
        problems = agent.part(DeferralPart).problems()
    assert [one["pool"] for one in logs if one["event"] == "policy_cannot_run"] == ["night"]
    assert "knapsack decides: highspy is missing" in problems["deferral night"]
    assert problems["deferral day"] == ""
