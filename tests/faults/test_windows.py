"""A window of the schedule, from the loop to what people see: status, page and explain, over a restart."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from actuators.base import Act, ChangingCall
from agent.autoscaling import pins
from agent.autoscaling.explain import explain
from agent.autoscaling.minutes import Refusals
from agent.autoscaling.page import badges
from agent.autoscaling.state import FleetStore
from agent.autoscaling.turn import FleetTurn
from agent.autoscaling.view import fleet_status, status_lines
from agent.ledger.codec import plain
from agent.rails.schedule import WindowSetting
from domain.clock import BothTimes
from domain.controls import PauseScope
from domain.decisions import Mode, Reason
from tests.faults.world import START, MakeWorld, World


def planned(minute: int, minutes: float, **more: Any) -> WindowSetting:
    """A daily window that begins so many minutes after the world."""
    at = datetime.fromtimestamp(START + 60.0 * minute, UTC)
    return WindowSetting("rush", f"{at.minute} {at.hour} * * *", minutes, **more)


def under(world: World, *windows: WindowSetting) -> None:
    """Let the fleet have these windows, as the settings give them to a process that starts."""
    world.loop.fleets = tuple(replace(one, planned=windows) for one in world.loop.fleets)


def test_what_comes_is_shown_and_then_binds_over_a_restart(make_world: MakeWorld) -> None:
    world = make_world(idle_s=100_000.0)
    rush = planned(3, 10.0, minimum=4, maximum=9)
    under(world, rush)
    world.tick()
    now = world.agent_clock.now()
    known = fleet_status(FleetStore(world.ledger), "web", now)
    begins, ends = (datetime.fromtimestamp(START + 60.0 * m, UTC).strftime("%H:%M") for m in (3, 13))
    assert f"  window rush: from {begins} to {ends}: 4 to 9 VMs" in status_lines(known, now)
    assert plain(known)["windows"][0]["minimum"] == 4
    assert "window rush" not in [badge.word for badge in badges(known, "act", now)]
    assert sum(world.desired().values()) == 1

    world.tick(3)
    assert world.desired()["small"] == 4
    (effect,) = [effect for effect in world.decision("web").effects if effect.rail == "schedule"]
    assert "window rush" in [
        badge.word for badge in badges(fleet_status(FleetStore(world.ledger), "web", now + 180.0), "act", now + 180)
    ]
    raised = [
        made for made in (report.decisions[0] for report in world.reports) if made.reason is Reason.SCHEDULED_MINIMUM
    ]
    assert f"until {ends}:00 UTC" in raised[0].sentence
    record = FleetStore(world.ledger).decision(raised[0].decision_id)
    assert f"window rush until {ends}: 4 to 9 VMs" in explain(record).seen
    assert any(step.rail == "schedule" and "small 1 -> 4" in step.change for step in explain(record).steps)

    world.restart(Mode.ACT)
    under(world, rush)
    world.submit(200)
    world.tick(2)
    assert sum(world.desired().values()) == 9
    assert effect.after[0] >= 4


def test_the_pause_of_a_window_holds_a_call_that_was_decided_before_it(make_world: MakeWorld) -> None:
    world = make_world()
    under(world, planned(1, 10.0, pause=PauseScope.ALL))
    now = START + 30.0
    call = ChangingCall(Act.REMOVE, "web", "small", None)
    turn = FleetTurn(
        now,
        BothTimes(now, world.agent_clock.monotonic()),
        world.loop.fleets,
        world.loop.store,
        {"web": world.epoch},
        [world.epoch],
        Refusals(),
        (),
    )
    permit = world.loop._permit(turn, world.loop.fleets[0])
    assert permit(call) is None
    world.clock.advance(60.0)
    refusal = permit(call)
    assert refusal is not None
    assert refusal.reason is Reason.PAUSED
    assert "the schedule" in refusal.detail


def test_a_pinned_group_stays_and_the_others_make_up_for_it(make_world: MakeWorld) -> None:
    world = make_world(idle_s=100_000.0)
    under(world, planned(2, 30.0, minimum=4))
    world.tick()
    now = world.agent_clock.now()
    pins.pin(FleetStore(world.ledger), "web", 2, group="small", owner="ada", reason="test", now=now, lasting_s=900.0)
    world.tick(3)
    assert world.desired() == {"small": 2, "medium": 2, "large": 0}
