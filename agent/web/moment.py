"""What the page shows of one moment: everything it needs, gathered from the view at one journal number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.autoscaling.explain import plain
from agent.autoscaling.state import PauseScope
from agent.autoscaling.status import FleetStatus
from agent.ledger import Kind
from agent.oversubscription.pool import PoolView
from agent.view.records import AgentStatus, InputStatus, VmReport
from agent.view.view import AgentView
from agent.web.badges import Badge, badges
from agent.web.bars import Bar, Line, bar, bar_scale, line
from agent.web.history import KEPT_S, QueueHistory
from agent.web.rows import DecisionItem, EventItem, decision_item, item_of
from agent.web.text import arrows, clock_time, counted, duration
from domain.errors import BadInput

DECISIONS, EVENTS = 15, 12
LISTED_KINDS = (Kind.EVENT, Kind.SETTINGS)
SILENT_VMS = 12
AGENT = ""
"""The fleet under which the agent's own events stand."""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something a person should look into: a heading and a sentence."""

    what: str
    sentence: str


@dataclass(frozen=True, slots=True)
class QueueLines:
    """The last hour of a queue, drawn: jobs waiting and jobs running on one scale."""

    waiting: Line
    running: Line
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class FleetView:
    """One fleet as the page shows it; `held` are sentences on what holds it or is under way."""

    status: FleetStatus
    badges: tuple[Badge, ...]
    bars: tuple[Bar, ...]
    queue: QueueLines
    held: tuple[tuple[str, str], ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class VmSummary:
    """The VMs of some fleets: how many there are, fell silent, never reported; the first of those with their fleet."""

    total: int
    silent: int
    unheard: int
    first: tuple[tuple[str, VmReport], ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """One fleet, or all, at journal number `seq` and time `at`."""

    seq: int
    at: float
    agent: AgentStatus
    alerts: tuple[Alert, ...]
    fleets: tuple[FleetView, ...]
    vms: VmSummary
    inputs: InputStatus
    pools: tuple[PoolView, ...]
    decisions: tuple[DecisionItem, ...]
    events: tuple[EventItem, ...]


def moment(view: AgentView, history: QueueHistory, fleet: str | None) -> Moment:
    """Return what there is to see now; BadInput names the fleets, LedgerUnavailable when the ledger cannot be read."""
    # The number comes first: what is listed is cut off there, and the stream goes on from there.
    seq = view.newest_seq()
    now = view.parts.now()
    status = view.status()
    if fleet is not None:
        status = replace(status, fleets=(view.fleet(fleet),))
    names = [known.fleet for known in status.fleets]
    scope = None if fleet is None else (fleet, AGENT)
    page = view.decisions(fleet, before_seq=seq + 1, limit=DECISIONS)
    # Most rows may be routine, which is not listed.
    rows = view.latest(LISTED_KINDS, up_to_seq=seq, fleets=scope, limit=10 * EVENTS)
    events = [item for item in map(item_of, rows) if isinstance(item, EventItem)]
    return Moment(
        seq=seq,
        at=now,
        agent=status,
        alerts=alerts(view),
        fleets=tuple(_fleet_view(known, status.mode, history, now) for known in status.fleets),
        vms=vm_summary(view, names),
        inputs=view.inputs(),
        pools=() if fleet is not None else tuple(pool.view() for _, pool in sorted(view.parts.pools.items())),
        decisions=tuple(decision_item(listed.seq, plain(listed.decision)) for listed in page.decisions),
        events=tuple(events[:EVENTS]),
    )


def alerts(view: AgentView) -> tuple[Alert, ...]:
    """Return what a person should look into, the gravest first; reads no ledger."""
    standing, health = view.parts.board.read(), view.health()
    found = []
    if standing.stopping:
        found.append(Alert("Stopping", "the agent is ending; no further turn begins"))
    elif not health.ok:
        found.append(Alert("Not turning", health.detail))
    if standing.ledger_failure:
        found.append(Alert("Nothing is executed", standing.ledger_failure))
    found += [Alert(name, sentence) for name, sentence in sorted(standing.problems.items())]
    return tuple(found)


def vm_summary(view: AgentView, fleets: Sequence[str]) -> VmSummary:
    """Return how many VMs there are and which do not report: the longest silent first, then those never heard of."""
    silent: list[tuple[str, VmReport]] = []
    total = 0
    for name in fleets:
        reports = _reports(view, name)
        total += len(reports)
        silent += [(name, report) for report in reports if not report.reporting]
    silent.sort(key=lambda item: silence(item[1]))
    unheard = sum(report.last_sample_at is None for _, report in silent)
    return VmSummary(total, len(silent) - unheard, unheard, tuple(silent[:SILENT_VMS]))


def vms_of(view: AgentView, fleet: str) -> tuple[VmReport, ...]:
    """Return a fleet's VMs, the silent ones first; none when the fleet is no longer managed."""
    return tuple(sorted(_reports(view, fleet), key=silence))


def _reports(view: AgentView, fleet: str) -> tuple[VmReport, ...]:
    try:
        return view.vms(fleet)
    except BadInput:
        return ()


def silence(report: VmReport) -> tuple[bool, bool, float, str, str]:
    """Return what to sort VMs by, so that those that fell silent come first."""
    longest = 0.0 if report.reporting else report.last_sample_at or 0.0
    return report.reporting, report.last_sample_at is None, longest, report.group, report.vm


def _fleet_view(status: FleetStatus, mode: str, history: QueueHistory, now: float) -> FleetView:
    scale = bar_scale(status.groups)
    return FleetView(
        status=status,
        badges=badges(status, mode, now),
        bars=tuple(bar(group, scale) for group in status.groups),
        queue=_queue_lines(history, status, now),
        held=tuple(_held(status, now)),
        sentence=arrows(status.last_decision.sentence) if status.last_decision is not None else "",
    )


def _queue_lines(history: QueueHistory, status: FleetStatus, now: float) -> QueueLines:
    points = history.last_hour(status, now)
    start, end = now - KEPT_S, max(now, points[-1].at if points else now)
    waiting = [(point.at, point.waiting) for point in points]
    running = [(point.at, point.running) for point in points]
    top = max([1, *(value for _, value in waiting + running if value is not None)])
    return QueueLines(line(waiting, start, end, top), line(running, start, end, top), start, end)


def _held(status: FleetStatus, now: float) -> list[tuple[str, str]]:
    """Return what is under way and what holds the fleet: a word or two, and a sentence."""
    lines = []
    for pause in status.pauses:
        end = "until resumed" if pause.until is None else f"for {duration(pause.until - now)} more"
        what = "all changes" if pause.scope is PauseScope.ALL else f"scale-{pause.scope}"
        lines.append(("paused", f"{what}, by {pause.owner}, {end}: {pause.reason}"))
    if (pin := status.pin) is not None:
        sizes = ", ".join(f"{key} {size}" for key, size in pin.desired.items())
        lines.append(("pinned", f"at {sizes} by {pin.owner}, for {duration(pin.until - now)} more: {pin.reason}"))
    for intent in status.open_intents:
        since = duration(now - intent.created_at)
        lines.append(
            ("under way", f"{intent.group} {intent.before} → {intent.target} ({intent.intent_id}), for {since}")
        )
    for breaker in status.breakers:
        # What failed and was made good again is of no interest.
        if breaker.failures:
            end = f", left alone for {duration(breaker.open_until - now)} more" if breaker.open else ""
            failures = counted(breaker.failures, "failure")
            lines.append(("breaker open" if breaker.open else "breaker", f"{breaker.group}: {failures} in a row{end}"))
    for mark in status.capacity_marks:
        zone = mark.zone or "any zone"
        lines.append(("no capacity", f"{mark.vm_type} in {zone}, asked for again at {clock_time(mark.until, now)}"))
    cooling = [f"{c.group} scale-{c.direction} for {duration(c.remaining_s(now))}" for c in status.cooldowns]
    if cooling:
        lines.append(("cooling down", ", ".join(cooling)))
    return lines
