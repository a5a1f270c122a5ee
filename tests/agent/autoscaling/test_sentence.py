"""One plain sentence for a decision: what was decided, what was seen, what limited it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from tests.golden import check_wording

CALM = QueueSnapshot(0, 3, 40, 0)
BUSY = QueueSnapshot(40, 3, 80, 40, oldest_wait_s=3540.0)
SEEN = {"queue": CALM, "cpu_mean": 0.83}


def told(desired: tuple[int, ...], *, width: int | None = None, inputs: Any = None, **of_scene: Any) -> str:
    """The sentence of a minute in which the policy wanted these sizes."""
    of_scene["snapshot"] = SEEN | of_scene.get("snapshot", {})
    minute = inputs_of(scene(**{"requested": (3, 3, 3), **of_scene}), **(inputs or {}))
    made = decide(minute, Proposer(evaluate_directly, {STUB: Stub(desired)}))
    return plain_sentence(made.decision, minute, width)


SPOT = {"interrupted": (("workers_m", "workers_m-0"),)}
UNREAD = {"snapshot": None, "cloud_failure": ReadFailure(FailureClass.UNAVAILABLE, "no answer")}
UNSUPPORTED = {"snapshot": None, "cloud_failure": ReadFailure(FailureClass.UNSUPPORTED, "mixed types in web-m")}
ABSENT = {"queue": None, "cpu_mean": None, "absent": ("cpu", "queue"), "stale_bins": 5}
LIMITED: dict[str, Any] = {"snapshot": {"queue": BUSY}, "limits": {"max_step_out": 2}}


def test_it_says_what_was_decided_what_was_seen_and_what_held_it_back() -> None:
    texts = {
        "kept": told((3, 3, 3)),
        "grew": told((5, 3, 3)),
        "shrank": told((3, 2, 1)),
        "changed": told((4, 3, 2)),
        "many jobs wait": told((3, 3, 3), snapshot={"queue": BUSY}),
        "one job waits": told((3, 3, 3), snapshot={"queue": replace(BUSY, waiting=1, oldest_wait_s=None)}),
        "absent input is not shown as zero": told((3, 3, 3), snapshot=ABSENT),
        "nothing measured": told((3, 3, 3), snapshot={"queue": None, "cpu_mean": None}),
        "shrunk by a rail": told((9, 3, 3), limits={"max_step_out": 2}),
        "paused": told((9, 3, 3), controls=paused(PauseScope.ALL)),
        "pinned": told((3, 3, 3), controls=pinned({"workers_m": 4})),
        "not the leader": told((9, 3, 3), leader=False),
        "observe mode": told((5, 3, 3), mode=Mode.OBSERVE),
        "observe mode, kept": told((3, 3, 3), mode=Mode.OBSERVE),
        "an earlier change is in progress": told((5, 3, 3), in_flight=("workers_m",)),
        "replaced": told((3, 3, 3), inputs=SPOT),
        "AWS not read": told((3, 3, 3), inputs=UNREAD),
        "group not supported": told((3, 3, 3), inputs=UNSUPPORTED),
        "policy failed": told((3, 3, 3), inputs={"policy": "none-such"}),
        # The least important clauses go first where there is little room.
        "of any width": told((9, 3, 3), **LIMITED),
        "of 80 characters": told((9, 3, 3), width=80, **LIMITED),
        "of 50 characters": told((9, 3, 3), width=50, **LIMITED),
        "of 36 characters": told((9, 3, 3), width=36, **LIMITED),
        "of 10 characters": told((9, 3, 3), width=10, **LIMITED),
    }
    check_wording("sentence", texts)


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
