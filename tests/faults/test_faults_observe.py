"""In observe mode not one call that changes anything leaves the process, whatever goes wrong around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from domain.decisions import Mode, Reason
from tests.agent.autoscaling.policies.misbehaving import Misbehaving, proposing, raising
from tests.faults.world import AGENT_KEY, QUICK, L, M, MakeWorld, World

HOUR = 3600.0
Mischief = Callable[[World], object]


def nothing(world: World) -> None:
    """No fault."""


def fault(kind: str, **about: Any) -> Mischief:
    return lambda world: world.fault(kind, **about)


def no_capacity(world: World) -> None:
    world.fault("capacity", instance_type=M.name)
    world.fault("capacity", instance_type=L.name)


def nobody_reports(world: World) -> None:
    world.cpu, world.queue_reports = None, False


def half_reports(world: World) -> None:
    world.silent = {vm for _, vm, _ in world.vms()[::2]}


def poison(world: World) -> None:
    def noise(at: float) -> bytes:
        lines = [f"trimtab.web.queue.waiting {value} {at!r}" for value in ("nan", "1e308", "-3")]
        return "\n".join([*lines, f"trimtab.web.queue.waiting 900 {at + HOUR!r}", "x" * 1_000_000, ""]).encode()

    world.noise, world.copies = noise, 10


def clock(seconds: float, *, everywhere: bool) -> Mischief:
    def step(world: World) -> None:
        world.agent_clock.step(seconds)
        world.vm_clock_error_s += seconds if everywhere else 0.0

    return step


def policy(misbehaving: Misbehaving) -> Mischief:
    def put_in(world: World) -> None:
        world.loop.fleets = (replace(world.loop.fleets[0], policy="bad"),)
        world.loop.proposer = type(world.loop.proposer)(world.loop.proposer._evaluate, {"bad": misbehaving})

    return put_in


def restart(world: World) -> None:
    world.restart()


def change(**sizes: int) -> Mischief:
    return lambda world: world.owner.update_auto_scaling_group(AutoScalingGroupName="workers-s", **sizes)


def suspend(*processes: str) -> Mischief:
    return lambda world: world.owner.suspend_processes(
        AutoScalingGroupName="workers-s", ScalingProcesses=list(processes)
    )


def refresh(world: World) -> None:
    world.owner.start_instance_refresh(AutoScalingGroupName="workers-s")


def drain_by_hand(world: World) -> None:
    for vm in world.in_service("small")[:2]:
        world.owner.terminate_instance_in_auto_scaling_group(InstanceId=vm, ShouldDecrementDesiredCapacity=True)


def spot_storm(world: World) -> None:
    world.control.spot_notice(world.in_service("small")[:2], queue=world.notices)


def deposed(world: World) -> None:
    world.ledger.take_epoch("another", world.clock.now())


def unwritable(world: World) -> None:
    def refuse(connection: Any, *_: object) -> None:
        connection.exec_driver_sql("PRAGMA query_only=1")

    event.listen(world.ledger.database._engine, "begin", refuse)


FAULTS: dict[str, Mischief] = {
    "none": nothing,
    "a third throttled": fault("throttle", rate=0.3),
    "all throttled": fault("throttle", duration_s=150.0),
    "reads time out": fault("timeout_before", rate=0.5),
    "answers get lost": fault("timeout_after", rate=0.5),
    "server errors": fault("internal_error", rate=0.5),
    "terminations refused": fault("fail_terminate"),
    "completions lost": fault("lost_completion"),
    "heartbeats late": fault("late_heartbeat", delay_s=60.0),
    "no capacity": no_capacity,
    "nobody reports": nobody_reports,
    "half report": half_reports,
    "poison": poison,
    "clock an hour back": clock(-HOUR, everywhere=True),
    "clock an hour forward": clock(HOUR, everywhere=True),
    "the host's clock wrong": clock(HOUR, everywhere=False),
    "policy raises": policy(Misbehaving(raising)),
    "policy asks for all": policy(Misbehaving(proposing((10, 10, 10)))),
    "policy asks for nothing": policy(Misbehaving(proposing((0, 0, 0)))),
    "restart": restart,
    "ledger read-only": unwritable,
    "size set by hand": change(DesiredCapacity=8),
    "minimum raised by hand": change(MinSize=6),
    "maximum lowered by hand": change(MaxSize=3),
    "Launch and Terminate suspended": suspend("Launch", "Terminate"),
    "instance refresh": refresh,
    "drains begun by hand": drain_by_hand,
    "spot storm": spot_storm,
    "credentials expired": fault("expired_token", duration_s=150.0),
    "access denied": fault("access_denied", rate=0.5),
    "another leader": deposed,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("mischief", FAULTS)
def test_nothing_is_changed(make_world: MakeWorld, mischief: str) -> None:
    limits = replace(QUICK, safe_floor=(6, 2, 1), hold_bins=1)
    world = make_world(mode=Mode.OBSERVE, sizes=(5, 0, 0), protect_busy=True, limits=limits)
    busy, *_ = world.in_service("small")
    world.busy = {busy: 2.0}
    world.submit(30)
    world.tick()
    assert world.last.reason is Reason.OBSERVE_MODE
    assert world.last.proposal.desired != world.snapshot.requested
    FAULTS[mischief](world)
    world.tick(2)
    world.waiting = 0
    world.tick(2)
    assert (world.reports[-1].failure is not None) == (mischief in ("ledger read-only", "another leader"))
    assert world.control.calls(access_key=AGENT_KEY, mutating=True) == []
    assert all(decision.intents == () for report in world.reports for decision in report.decisions)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["timeout_after", "timeout_before", "throttle", "access_denied"])
def test_what_act_mode_left_undone_is_left_so(make_world: MakeWorld, kind: str) -> None:
    world = make_world(sizes=(4, 0, 0))
    world.busy = dict.fromkeys(world.in_service("small"), 1.0)
    world.submit(30)
    world.fault(kind, operations=["SetDesiredCapacity"])
    world.tick()
    before = len(world.control.calls(access_key=AGENT_KEY, mutating=True))
    assert before > 0
    world.restart(Mode.OBSERVE)
    world.tick(4)
    assert len(world.control.calls(access_key=AGENT_KEY, mutating=True)) == before
    assert world.ledger.open_intents() == ()
