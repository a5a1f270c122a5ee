"""Turns of the loop for the screens: a fleet of three types, and decisions, events and outcomes upon it."""

from typing import Any

from agent.autoscaling.report import MinuteReport
from agent.rehearsal.screens import Turn
from domain.decisions import (
    Decision,
    Direction,
    Event,
    Intent,
    Mode,
    Outcome,
    Proposal,
    RailEffect,
    Reason,
    Status,
    Verdict,
)
from domain.fleet import Fleet, Group, VmType
from domain.snapshot import GroupSnapshot, QueueSnapshot, Snapshot
from domain.subject import fleet_subject

NINE = 1_795_208_400.0  # 2026-11-20 21:00:00 UTC
TYPES = (
    VmType("m5a.large", 2, 8.0, 0.086),
    VmType("m5a.xlarge", 4, 16.0, 0.172),
    VmType("m5a.2xlarge", 8, 32.0, 0.344),
)
KEYS = ("workers_s", "workers_m", "workers_l")
FLEET = Fleet("web", tuple(Group(k, k, t, 0, 3) for k, t in zip(KEYS, TYPES, strict=True)))


def snapshot(sizes: tuple[int, ...] = (1, 2, 0), minute: int = 4, **other: Any) -> Snapshot:
    """A fleet whose VMs are all warm, with a queue, by default; `booting` and `draining` per group."""
    booting, draining = other.pop("booting", (0, 0, 0)), other.pop("draining", (0, 0, 0))
    groups = tuple(
        GroupSnapshot(
            key,
            n,
            n - b,
            n - b,
            b,
            0,
            d,
            0,
            0,
            0,
            n,
            0,
            3,
            cpu_mean=0.5,
            removable=tuple(f"i-{key}-{k}" for k in range(n)),
        )
        for key, n, b, d in zip(KEYS, sizes, booting, draining, strict=True)
    )
    queue = other.pop("queue", QueueSnapshot(38, 2, 40, 40))
    at = NINE + 60.0 * minute
    return Snapshot("web", at, at, groups, queue, 1.0, 5.0, **other)


def decision(
    number: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
    *effects: RailEffect,
    proposed: tuple[int, ...] | None = None,
    reason: Reason = Reason.QUEUE_GREW,
    mode: Mode = Mode.ACT,
    shadow: tuple[int, ...] | None = None,
) -> Decision:
    """A decision with the intents that its change of size asks for."""
    at = NINE + 60.0 * number
    intents = tuple(
        Intent(f"web-{number}.{key}", f"web-{number}", "web", key, Direction.OUT, was, becomes, (), 1, at, at + 300.0)
        for key, was, becomes in zip(KEYS, before, after, strict=True)
        if becomes > was
    )
    return Decision(
        f"web-{number}",
        "web",
        at,
        mode,
        Proposal("web", "queue-rule:horizon_s=150", proposed or after, reason, "38 jobs wait"),
        effects,
        after,
        reason,
        f"the sentence of web-{number}",
        intents,
        (Proposal("web", "threshold:high=0.75", shadow, Reason.LOAD_HIGH),) if shadow else (),
    )


def held(rail: str, before: tuple[int, ...], after: tuple[int, ...], reason: Reason, detail: str) -> RailEffect:
    """A rail that set a proposal back."""
    return RailEffect(rail, Verdict.VETOED, before, after, reason, detail)


def moved(before: tuple[int, ...], after: tuple[int, ...]) -> RailEffect:
    """The rail that asks for the next type."""
    return RailEffect("capacity_memory", Verdict.MOVED, before, after, Reason.CAPACITY_FALLBACK, "trying m5a.xlarge")


def event(reason: Reason, detail: str, subject: str = "", minute: int = 4) -> Event:
    """An event in a minute of the hour."""
    return Event(fleet_subject("web"), NINE + 60.0 * minute, reason, detail, subject)


def outcome(status: Status, reason: Reason, asked: int, achieved: int, detail: str, minute: int = 4) -> Outcome:
    """An outcome of the intent web-3.workers_l."""
    return Outcome("web-3.workers_l", status, reason, asked, achieved, NINE + 60.0 * minute, detail)


def turn(*parts: Any, rent: float = 0.25, failure: str | None = None) -> Turn:
    """A turn made of snapshots, decisions, outcomes and events."""

    def those(kind: type) -> tuple[Any, ...]:
        return tuple(part for part in parts if isinstance(part, kind))

    at = max([NINE, *(part.at for part in those(Decision))])
    made = Intent("web-3.workers_l", "web-3", "web", "workers_l", Direction.OUT, 1, 3, (), 1, NINE, NINE + 600.0)
    results = tuple((made, one) for one in those(Outcome))
    report = MinuteReport(at, those(Snapshot), those(Decision), results, those(Event), failure)
    return Turn(FLEET, report, rent)
