"""What rails tell people, word for word; the other tests look at verdicts, reasons and sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agent.rails.base import Rail, RailContext
from agent.rails.budget import budget
from agent.rails.capacity_memory import capacity_memory
from agent.rails.circuit_breaker import circuit_breaker
from agent.rails.inputs import finite_and_schema, sickness, staleness_and_coverage
from agent.rails.limits import bounds, group_state, step_limit
from agent.rails.order import apply_rails, replaceable
from agent.rails.permissions import leader_epoch, mode, pause_and_pin
from agent.rails.schedule import schedule
from agent.rails.stability import cooldown, flap_guard, warmup
from agent.rails.state import Breaker, CapacityMark, Change, Cooldown, Spend
from domain.controls import PauseScope, Pin, Window
from domain.decisions import Direction, Mode, Origin, Proposal, Reason
from tests.agent.rails.scenes import NOON, ask, fleet, group, paused, pinned, proposal, scene
from tests.golden import check_wording

HOUR = 3600.0
SHORT = {"capacity": (CapacityMark("m5a.large", "", NOON + 270.0, 600.0),)}
IN_ONE_ZONE = {"capacity": (CapacityMark("m5a.large", "us-east-1b", NOON + 270.0, 600.0),)}
TWO_ENDS = {
    "capacity": (
        CapacityMark("m5a.large", "us-east-1a", NOON + 500.0, 600.0),
        CapacityMark("m5a.large", "us-east-1b", NOON + 90.0, 600.0),
    )
}
OPEN = {"breakers": (Breaker("workers_m", 3, NOON + 300.0, 300.0),)}
RESTS = {"cooldowns": (Cooldown("workers_m", Direction.OUT, NOON + 240.0, 300.0),)}
TURNS = {
    "changes": tuple(
        Change("workers_m", way, NOON - 600.0 * ago)
        for way, ago in ((Direction.IN, 4), (Direction.OUT, 3), (Direction.IN, 2), (Direction.OUT, 1))
    )
}
FLOOR = {"safe_floor": (4, 1, 0)}
DAY = {"spend": Spend(NOON - 12 * HOUR, 3.0, NOON)}
RUSH = Window("rush", NOON - HOUR, NOON + HOUR, minimum=40)
PIN = Pin({"workers_m": 9}, "ana", "load test", NOON - 600.0, NOON + HOUR)


def _m(**about: Any) -> dict[str, Any]:
    return {"workers_m": about}


CASES: dict[str, tuple[Rail, Proposal, RailContext]] = {
    "not finite": (finite_and_schema, proposal(9, float("nan"), 9), scene()),
    "no size": (finite_and_schema, proposal(9, 2.5, 9), scene()),
    "another number of sizes": (finite_and_schema, proposal(1, 2), scene()),
    "another fleet": (finite_and_schema, replace(proposal(9, 9, 9), fleet="batch"), scene()),
    "other groups": (finite_and_schema, proposal(1, 2, 3), scene(snapshot={"groups": (group("workers_m", 7),)})),
    "absent": (staleness_and_coverage, proposal(9, 4, 4), scene(snapshot={"absent": ("queue",), "stale_bins": 1})),
    "old": (staleness_and_coverage, proposal(9, 4, 4), scene(snapshot={"age_s": 150.1})),
    "of unknown age": (staleness_and_coverage, proposal(9, 4, 4), scene(snapshot={"age_s": None})),
    "few report": (staleness_and_coverage, proposal(2, 4, 4), scene(snapshot={"coverage": 0.49})),
    "safe floor": (
        staleness_and_coverage,
        proposal(4, 4, 4),
        scene(limits={"safe_floor": (6, 2, 0)}, snapshot={"absent": ("cpu",), "stale_bins": 4}),
    ),
    "sick": (sickness, proposal(8, 0, 0), scene((10, 0, 0), _m(silent=5))),
    "paused until": (pause_and_pin, proposal(6, 4, 4), scene(controls=paused(PauseScope.OUT, until=NOON + 1800.0))),
    "paused": (pause_and_pin, proposal(6, 4, 4), scene(controls=paused(PauseScope.ALL))),
    "pinned": (pause_and_pin, proposal(6, 4, 4), scene(controls=pinned({"workers_m": 9}))),
    "pinned under a pause": (pause_and_pin, proposal(5, 4, 4), scene(controls=paused(PauseScope.OUT, pin=PIN))),
    "scheduled minimum": (schedule, proposal(4, 4, 4), scene(windows=(RUSH,))),
    "scheduled maximum": (schedule, proposal(9, 6, 4), scene(windows=(replace(RUSH, minimum=None, maximum=13),))),
    "below the minimum": (bounds, proposal(0, 4, 4), scene(fleet=fleet(minimum=1))),
    "above the maximum": (bounds, proposal(4, 4, 9), scene(fleet=fleet(maximum=8))),
    "bounds of AWS alone": (
        bounds,
        proposal(2, 4, 4),
        scene((2, 4, 4), _m(minimum=5, maximum=9), fleet=fleet(minimum=2, maximum=4)),
    ),
    "step out": (step_limit, proposal(4, 0, 0), scene((2, 0, 0), limits={"max_step_out": 1})),
    "step in": (step_limit, proposal(0, 4, 4), scene(limits={"max_step_in": 2})),
    "launches suspended": (group_state, proposal(5, 4, 4), scene(groups=_m(suspended=("Launch",)))),
    "terminations suspended": (group_state, proposal(3, 4, 4), scene(groups=_m(suspended=("Terminate",)))),
    "instance refresh": (group_state, proposal(3, 4, 4), scene(groups=_m(refreshing=True))),
    "refused by AWS, too large": (group_state, proposal(10, 4, 4), scene((12, 4, 4), _m(maximum=8))),
    "refused by AWS, too small": (group_state, proposal(1, 4, 4), scene((0, 4, 4), _m(minimum=3))),
    "cool-down": (cooldown, proposal(5, 4, 4), scene(state=RESTS)),
    "booting": (warmup, proposal(7, 4, 4, counts_pending=False), scene(groups=_m(booting=2))),
    "open intent": (warmup, proposal(5, 4, 4), scene(in_flight=("workers_m",))),
    "not yet stable": (flap_guard, proposal(3, 4, 4), scene(state={"in_streak": {"workers_m": 2}})),
    "too young": (flap_guard, proposal(0, 4, 4), scene(groups=_m(mature=1))),
    "busy": (flap_guard, proposal(0, 4, 4), scene(groups=_m(removable=("i-1", "i-2")))),
    "reversals": (flap_guard, proposal(3, 4, 4), scene(state=TURNS, limits={"max_reversals": 3})),
    "hourly budget": (budget, proposal(3, 0, 0), scene((1, 0, 0), limits={"budget_per_hour": 0.2})),
    "daily budget": (budget, proposal(4, 0, 0), scene((1, 0, 0), limits={"budget_per_day": 3.172}, state=DAY)),
    "short in a zone": (
        capacity_memory,
        proposal(7, 4, 4),
        scene(groups=_m(zones=("us-east-1b",)), state=IN_ONE_ZONE),
    ),
    "short in two zones": (capacity_memory, proposal(5, 4, 4), scene(state=TWO_ENDS)),
    "short without another type": (capacity_memory, proposal(7), scene((4,), state=SHORT)),
    "short for the minimum": (
        capacity_memory,
        proposal(2, 4, 4),
        scene((0, 4, 4), state=SHORT, fleet=fleet(minimum=2)),
    ),
    "short for a covered floor": (
        capacity_memory,
        proposal(4, 3, 0, origin=Origin.FLOOR),
        scene((0, 3, 0), state=SHORT, limits=FLOOR),
    ),
    "breaker open": (circuit_breaker, proposal(5, 4, 4), scene(state=OPEN)),
    "breaker half open": (circuit_breaker, proposal(9, 4, 4), scene(state=OPEN, now=NOON + 300.0)),
    "another leads": (leader_epoch, proposal(5, 4, 4), scene(leader=False)),
    "observe mode": (mode, proposal(5, 3, 4), scene(mode=Mode.OBSERVE)),
}


def test_the_wording_of_rails() -> None:
    check_wording("rails", {name: ask(rail, asked, context).detail for name, (rail, asked, context) in CASES.items()})


def test_the_wording_of_moves_and_replacements() -> None:
    moved = {**SHORT, "cooldowns": (Cooldown("workers_l", Direction.OUT, NOON + 100.0, 300.0),)}
    _, effects = apply_rails(proposal(6, 4, 4), scene(state=moved))
    texts = {"rail after a move": next(each.detail for each in effects if each.reason is Reason.COOLING_DOWN)}
    spot = (("workers_m", "i-1"), ("workers_m", "i-2"))
    for name, context in {
        "paused": scene(controls=paused(PauseScope.OUT)),
        "breaker open": scene(state=OPEN),
        "breaker half open": scene(state=OPEN, now=NOON + 300.0),
    }.items():
        texts[f"replacement, {name}"] = "\n".join(replaceable(spot, context)[1])
    check_wording("rails-around", texts)
