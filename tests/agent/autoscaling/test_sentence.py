"""One plain sentence for a decision: what was decided, what was seen, what limited it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.decide import decide
from agent.autoscaling.policies.fallback import Proposer, evaluate_directly
from agent.autoscaling.sentence import plain_sentence
from domain.controls import PauseScope
from domain.decisions import Mode
from domain.errors import FailureClass
from domain.observed import ReadFailure
from domain.snapshot import QueueSnapshot
from tests.agent.autoscaling.test_decide import STUB, Stub, inputs_of, minutes
from tests.agent.rails.scenes import paused, pinned, scene

CALM = QueueSnapshot(0, 3, 40, 0)
BUSY = QueueSnapshot(40, 3, 80, 40, oldest_wait_s=3540.0)
SEEN = {"queue": CALM, "cpu_mean": 0.83}


def told(desired: tuple[int, ...], *, width: int | None = None, inputs: Any = None, **of_scene: Any) -> str:
    """The sentence of a minute in which the policy wanted these sizes."""
    of_scene["snapshot"] = SEEN | of_scene.get("snapshot", {})
    minute = inputs_of(scene(**{"requested": (3, 3, 3), **of_scene}), **(inputs or {}))
    made = decide(minute, Proposer(evaluate_directly, {STUB: Stub(desired)}))
    return plain_sentence(made.decision, minute, width)


@pytest.mark.parametrize(
    ("desired", "expected"),
    [
        ((3, 3, 3), "kept 3+3+3: CPU 83 %, nothing waits"),
        ((5, 3, 3), "grew workers_m 3 -> 5: CPU 83 %, nothing waits"),
        ((3, 2, 1), "shrank workers_l 3 -> 2, workers_xl 3 -> 1: CPU 83 %, nothing waits"),
        ((4, 3, 2), "changed workers_m 3 -> 4, workers_xl 3 -> 2: CPU 83 %, nothing waits"),
    ],
)
def test_it_says_what_was_decided_and_what_was_seen(desired: tuple[int, ...], expected: str) -> None:
    assert told(desired) == expected


def test_one_job_or_many_wait_and_the_oldest_has_its_age() -> None:
    assert told((3, 3, 3), snapshot={"queue": BUSY}) == "kept 3+3+3: CPU 83 %, 40 jobs wait, the oldest for 59 min"
    assert told((3, 3, 3), snapshot={"queue": replace(BUSY, waiting=1, oldest_wait_s=None)}).endswith("1 job waits")


def test_what_is_absent_is_named_and_never_shown_as_zero() -> None:
    absent = {"queue": None, "cpu_mean": None, "absent": ("cpu", "queue"), "stale_bins": 5}
    assert told((3, 3, 3), snapshot=absent) == "kept 3+3+3: cpu, queue absent for 5 min"
    assert told((3, 3, 3), snapshot={"queue": None, "cpu_mean": None}) == "kept 3+3+3: nothing was measured"


def test_what_a_rail_held_back_has_its_cause() -> None:
    kept = "kept 3+3+3: CPU 83 %, nothing waits"
    assert told((9, 3, 3), limits={"max_step_out": 2}) == (
        "grew workers_m 3 -> 5: CPU 83 %, nothing waits; held back: step limit"
    )
    assert told((9, 3, 3), controls=paused(PauseScope.ALL)) == f"{kept}; paused"
    assert told((3, 3, 3), controls=pinned({"workers_m": 4})).endswith("; pinned")
    assert told((9, 3, 3), leader=False) == f"{kept}; another agent leads"


def test_an_agent_that_observes_says_what_it_would_do() -> None:
    assert told((5, 3, 3), mode=Mode.OBSERVE) == "would grow workers_m 3 -> 5: CPU 83 %, nothing waits"
    assert told((3, 3, 3), mode=Mode.OBSERVE) == "kept 3+3+3: CPU 83 %, nothing waits"


def test_a_change_that_waits_for_an_earlier_one_is_not_told_as_made() -> None:
    assert told((5, 3, 3), in_flight=("workers_m",)) == (
        "kept 3+3+3: CPU 83 %, nothing waits; an earlier change is under way"
    )


def test_a_replacement_has_its_number_of_vms() -> None:
    spot = {"interrupted": (("workers_m", "workers_m-0"),)}
    assert told((3, 3, 3), inputs=spot) == "replaced 1 VM of workers_m: CPU 83 %, nothing waits"


def test_a_fleet_that_could_not_be_read_keeps_its_sizes() -> None:
    unread = {"snapshot": None, "cloud_failure": ReadFailure(FailureClass.UNAVAILABLE, "no answer")}
    assert told((3, 3, 3), inputs=unread) == "kept the sizes: AWS could not be read (unavailable)"
    refused = {"snapshot": None, "cloud_failure": ReadFailure(FailureClass.UNSUPPORTED, "mixed types in web-m")}
    assert told((3, 3, 3), inputs=refused) == "kept the sizes: mixed types in web-m"


def test_a_policy_that_failed_is_not_the_one_that_decided() -> None:
    assert told((3, 3, 3), inputs={"policy": "none-such"}).endswith("; the policy failed, another decided")


def test_the_least_important_clauses_go_first_where_there_is_little_room() -> None:
    minute: dict[str, Any] = {"snapshot": {"queue": BUSY}, "limits": {"max_step_out": 2}}
    whole = told((9, 3, 3), **minute)
    assert whole == ("grew workers_m 3 -> 5: CPU 83 %, 40 jobs wait, the oldest for 59 min; held back: step limit")
    assert told((9, 3, 3), width=80, **minute) == whole.replace(", the oldest for 59 min", "")
    assert told((9, 3, 3), width=50, **minute) == "grew workers_m 3 -> 5: CPU 83 %, 40 jobs wait"
    assert told((9, 3, 3), width=36, **minute) == "grew workers_m 3 -> 5: CPU 83 %"
    assert told((9, 3, 3), width=10, **minute) == "grew wo..."


@given(minutes(), st.integers(min_value=3, max_value=120))
def test_every_minute_has_a_sentence_of_any_width(minute: Any, width: int) -> None:
    inputs, stub = minute
    decision = decide(inputs, Proposer(evaluate_directly, {STUB: stub, "hold": stub})).decision
    whole = plain_sentence(decision, inputs)
    assert whole.startswith(("kept ", "grew ", "shrank ", "changed ", "would ", "replaced "))
    # A change is told as made by nothing but an intent of it.
    made = any(intent.before != intent.target for intent in decision.intents)
    assert whole.startswith(("grew ", "shrank ", "changed ")) == made
    assert len(plain_sentence(decision, inputs, width)) <= width
