"""What outcomes and events of the actuator tell people, word for word; the other tests look at reasons and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from actuators.autoscaling_group import AutoScalingActuator
from actuators.base import Refusal
from actuators.drain import Drains, DrainSettings
from actuators.drift import DriftRule, drift
from actuators.protection import Protection
from actuators.sizes import QUIET_S
from domain.decisions import Direction, Event, Outcome, Reason
from domain.errors import FailureClass
from domain.fleet import Fleet
from domain.observed import GroupObserved, Lifecycle, Observed
from tests.actuators.scripted import (
    HOOK,
    LATE,
    NOW,
    SHORT,
    WEB,
    A,
    B,
    C,
    Cloud,
    D,
    activity,
    apply,
    error,
    follow,
    group,
    leaving,
    out,
    vms,
)
from tests.golden import check_wording

FLEET = Fleet("web", (WEB,))
THREE, FOUR = group(4, *vms(A, B, C), counted=3), group(4, *vms(A, B, C, D))
PAUSED = Refusal(Reason.PAUSED, "paused", over=False)


def _short_of(seen: GroupObserved, **about: object) -> Outcome:
    failed = activity("Failed", message=SHORT, at=NOW + 60.0 - QUIET_S)
    return follow(Cloud(seen, [failed], **about), out(), group(4, *vms(A, B, C)))  # type: ignore[arg-type]


def _set_back() -> Outcome:
    there = "a user request changing the desired capacity from 2 to 4. An instance was started"
    seen = group(2, *vms(A, B))
    return follow(Cloud(seen, [activity("Successful", cause=there)]), out(), seen)


def _dropped() -> Outcome:
    cloud = Cloud()
    actuator = AutoScalingActuator(cloud, cloud, (FLEET,))  # type: ignore[arg-type]
    return actuator.apply(replace(out(), group="gone"), Observed(NOW), NOW, cloud.permit)


def _scale_outs() -> dict[str, Outcome]:
    failing = Cloud(group(4, *vms(A, B), counted=2), [activity("Failed", message="The image id does not exist")])
    return {
        "sent": apply(Cloud(group(2, *vms(A, B))), out()),
        "AWS launches": follow(Cloud(activities=[activity("InProgress", vm=D)]), out(), group(4, *vms(A, B, C))),
        "all there": follow(Cloud(), out(), FOUR),
        "no capacity, given back": _short_of(THREE),
        "no capacity, another size since": _short_of(group(5, *vms(A, B), counted=2)),
        "no capacity, given back before": follow(
            Cloud(activities=[activity("Failed", message=SHORT)]), out(), group(3, *vms(A, B, C))
        ),
        "no capacity, not given back yet": _short_of(THREE, refusals={"give_back": PAUSED}),
        "no capacity, lowering fails": _short_of(THREE, fails={"SetDesiredCapacity": error(FailureClass.CREDENTIALS)}),
        "launches fail": follow(failing, out(), group(4, *vms(A, B))),
        "overdue": follow(Cloud(THREE), out(), THREE, LATE),
        "set back by another party": _set_back(),
        "never taken": follow(Cloud(), out(), group(2, *vms(A, B)), LATE),
        "group not read": follow(Cloud(), out(), None),
        "group not read until the deadline": follow(Cloud(), out(), None, LATE),
        "group unreadable before the call": apply(Cloud(error(FailureClass.THROTTLE)), out()),
        "group unsupported": apply(Cloud(error(FailureClass.UNSUPPORTED)), out()),
        "call refused by AWS": apply(
            Cloud(group(2), fails={"SetDesiredCapacity": error(FailureClass.PERMANENT)}), out()
        ),
        "group dropped from the settings": _dropped(),
        "there already": apply(Cloud(group(5, *vms(A, B))), out()),
        "above the maximum": apply(Cloud(group(2, *vms(A, B), maximum=3)), out()),
        "launches suspended": apply(Cloud(group(2, *vms(A, B), suspended=("Launch",))), out()),
        "instance refresh": apply(Cloud(group(2, *vms(A, B), refreshing=True)), out()),
    }


def _removals() -> dict[str, Outcome]:
    kept = group(4, *vms(A, B, protected=True), *vms(C, D))
    low = group(2, *vms(A, B, C, D))
    return {
        "terminated": apply(Cloud(FOUR), leaving(C, A)),
        "one fails": apply(Cloud(FOUR, fails={B: error(FailureClass.PERMANENT, "ValidationError")}), leaving(A, B, C)),
        "one is busy": apply(Cloud(FOUR, refusals={B: Refusal(Reason.BUSY, "busy")}), leaving(A, B, C)),
        "one is protected": apply(Cloud(kept), leaving(A, C)),
        "all are protected or gone": apply(Cloud(kept), leaving(A, "i-0000000f", direction=Direction.REPLACE)),
        "out of service": follow(
            Cloud(), leaving(A, B), group(2, *vms(C, D), *vms(A, B, lifecycle=Lifecycle.DRAINING))
        ),
        "still in service at the deadline": follow(Cloud(), leaving(A, B), group(3, *vms(B, C, D)), LATE),
        "the size fell first": follow(Cloud(low), leaving(A, B), low, NOW + 119.9),
        "another party lowered the size": follow(Cloud(low), leaving(A, B), low, NOW + 120.0),
        "below the minimum": apply(Cloud(group(4, *vms(A, B, C, D), minimum=3)), leaving(A, B)),
        "terminations suspended": apply(Cloud(group(4, *vms(A, B, C, D), suspended=("Terminate",))), leaving(A, B)),
    }


def _drains() -> list[Event]:
    cloud = Cloud()
    drains = Drains(cloud, lambda fleet: DrainSettings(deadline_s=900.0, notice_s=30.0))  # type: ignore[arg-type]
    events: list[Event] = []
    turns: list[tuple[float, dict[str, float | None]]] = [
        (0.0, {A: 2.0, B: None, C: 3.0}),
        (60.0, {A: 0.0, B: None, C: 3.0}),
        (900.0, {A: 0.0, B: None, C: 3.0}),
    ]
    for after_s, busy in turns:
        seen = replace(group(3, *vms(A, B, C, lifecycle=Lifecycle.DRAINING)), drain_hook=HOOK)
        if after_s == 900.0:
            cloud.fails[C] = error(FailureClass.PERMANENT, operation="CompleteLifecycleAction")
        drains.tend("web", seen, busy, NOW + after_s, cloud.permit, events)
    return events


def _protections() -> list[Event]:
    cloud = Cloud()
    seen = group(3, *vms(A, B), *vms(C, protected=True))
    busy: Mapping[str, float | None] = {A: 1.0, B: 0.0, C: 0.0}
    events: list[Event] = []
    Protection(cloud, (C,)).tend("web", seen, busy, NOW, cloud.permit, events)  # type: ignore[arg-type]
    return events


def test_the_wording_of_outcomes_and_events() -> None:
    changed = Observed(NOW, {"web-s": group(5)})
    drifts = [event for rule in DriftRule for event in drift(FLEET, {"s": 2}, changed, (), rule, NOW)[0]]
    texts = {f"scale-out: {name}": outcome.detail for name, outcome in _scale_outs().items()}
    texts |= {f"removal: {name}": outcome.detail for name, outcome in _removals().items()}
    events = [*_drains(), *_protections(), *drifts]
    texts |= {f"event {number}: {event.reason}": event.detail for number, event in enumerate(events, 1)}
    check_wording("actuators", texts)
