"""The fleets on the page: badges, bars of VMs, the queue's last hour, what holds them, their VMs and decisions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from agent.autoscaling.announcements import in_words
from agent.autoscaling.api import VmReport
from agent.autoscaling.explain import explain
from agent.autoscaling.policies.ppo_lstm import LEARNED, NAME_DIGITS, sha_of
from agent.autoscaling.status import FleetStatus, GroupStatus, ShadowStatus, fleet_status, fleet_statuses
from agent.autoscaling.store import FleetStore
from agent.decisions.http import LARGEST_SEQ
from agent.decisions.page import DecisionItem, Draw, Frame, RailWord, Scene
from agent.decisions.store import Record
from agent.decisions.text import arrows, clock_time, counted, duration_text
from agent.ledger import Ledger
from agent.ledger.codec import plain
from domain.controls import PauseScope
from domain.decisions import Direction, Mode, Reason, Verdict
from domain.errors import BadInput, LedgerError
from domain.snapshot import QueueSnapshot

if TYPE_CHECKING:
    from agent.autoscaling.part import AutoscalingPart

MOST_CARDS = 4
"""With more fleets than these each has a row instead of a card; its card is on its own page."""
DECISIONS = 15
DECISIONS_PER_PAGE = 50
VMS_PER_PAGE = 100
OneFleet = Annotated[str | None, Query(max_length=63)]
Before = Annotated[int | None, Query(ge=1, le=LARGEST_SEQ)]
PageNumber = Annotated[int, Query(ge=1, le=100_000)]

LINE_WIDTH, LINE_HEIGHT = 600.0, 64.0
_TOP_MARGIN = 4.0
KEPT_S = 3600.0
"""Of each queue's history: read from the ledger once, then kept up from each decision that is looked at."""
_MOST_POINTS = 720
SILENT_VMS = 12


class Tone(StrEnum):
    """How much a badge wants to be seen."""

    ON = "on"
    PLAIN = "plain"
    HELD = "held"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Badge:
    """A word or two, its tone, and a sentence that says more."""

    text: str
    tone: Tone
    detail: str


def badges(fleet: FleetStatus, mode: str, now: float) -> tuple[Badge, ...]:
    """Return a fleet's badges, its mode first; `mode` is the agent's, for a fleet not yet decided on."""
    shown = [_mode(fleet.mode or mode)]
    if fleet.leader is False:
        shown.append(Badge("not leader", Tone.HELD, "another agent leads; this one only watches"))
    if fleet.last_tick_at is None:
        shown.append(Badge("no decision yet", Tone.PLAIN, "nothing was ever decided for this fleet"))
    for pause in fleet.pauses:
        what = "paused" if pause.scope is PauseScope.ALL else f"scale-{pause.scope} paused"
        end = "until resumed" if pause.until is None else f"until {clock_time(pause.until, now)} UTC"
        shown.append(Badge(what, Tone.HELD, f"by {pause.owner}, {end}: {pause.reason}"))
    if fleet.pin is not None:
        sizes = ", ".join(f"{key} {size}" for key, size in fleet.pin.desired.items())
        end = clock_time(fleet.pin.until, now)
        shown.append(Badge("pinned", Tone.HELD, f"at {sizes} by {fleet.pin.owner} until {end} UTC: {fleet.pin.reason}"))
    if fleet.announced:
        shown.append(Badge("work announced", Tone.PLAIN, "; ".join(in_words(one) for one in fleet.announced)))
    if fleet.last_decision is not None and fleet.last_decision.reason == Reason.CLOUD_UNREADABLE:
        shown.append(Badge("AWS unreadable", Tone.BAD, fleet.last_decision.sentence))
    elif fleet.last_decision is not None and fleet.last_decision.reason == Reason.GROUP_UNSUPPORTED:
        shown.append(Badge("not managed", Tone.BAD, fleet.last_decision.sentence))
    elif fleet.stale_minutes:
        missing = ", ".join(fleet.last_decision.absent) if fleet.last_decision is not None else ""
        shown.append(Badge(f"holding {fleet.stale_minutes} min", Tone.HELD, f"absent: {missing or 'enough reports'}"))
    if opened := [breaker.group for breaker in fleet.breakers if breaker.open]:
        shown.append(Badge("breaker open", Tone.BAD, f"left alone after repeated failures: {', '.join(opened)}"))
    return tuple(shown)


def _mode(mode: str) -> Badge:
    if mode == Mode.ACT:
        return Badge("ACT", Tone.ON, "decides and does it")
    return Badge("OBSERVE", Tone.PLAIN, "decides and records; nothing in AWS is changed")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar from `x` on, `width` wide, both in percent; `kind` chooses its look."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A group's VMs side by side, and where on the same scale the requested size lies (percent; None: not known)."""

    pieces: tuple[Piece, ...]
    requested: float | None


def bar_scale(groups: Sequence[GroupStatus]) -> int:
    """Return how many VMs the whole width stands for: one scale for all groups of a fleet, so that they compare."""
    return max([1, *(max(_total(g), g.requested or 0, g.desired or 0) for g in groups)])


def bar(group: GroupStatus, scale: int) -> Bar:
    """Return the bar of a group: VMs that report, silent ones, those that boot, overdue ones, those that drain."""
    x, pieces = 0.0, []
    for kind, count in _counts(group):
        if count > 0:
            width = 100.0 * count / scale
            pieces.append(Piece(kind, round(x, 3), round(width, 3)))
            x += width
    asked = None if group.requested is None else round(100.0 * group.requested / scale, 3)
    return Bar(tuple(pieces), asked)


def _counts(group: GroupStatus) -> tuple[tuple[str, int], ...]:
    warm, silent = group.warm or 0, group.silent or 0
    return (
        ("reporting", max(0, warm - silent)),
        ("silent", min(warm, silent)),
        ("booting", group.booting or 0),
        ("overdue", group.overdue or 0),
        ("draining", group.draining or 0),
    )


def _total(group: GroupStatus) -> int:
    return sum(count for _, count in _counts(group))


@dataclass(frozen=True, slots=True)
class Line:
    """A line over time as SVG path data, the area below it, and the largest value; "" where nothing is known."""

    path: str
    area: str
    most: int


def line(points: Sequence[tuple[float, int | None]], start: float, end: float, top: int) -> Line:
    """Return values by time (None: a gap) drawn from `start` to `end`, `top` being the height's value."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
        elif start <= at <= end:
            x = LINE_WIDTH * (at - start) / (end - start)
            y = LINE_HEIGHT - (LINE_HEIGHT - _TOP_MARGIN) * value / max(1, top)
            runs[-1].append((x, y))
    drawn = [run for run in runs if run]
    # A point alone would not show: it becomes a short dash.
    drawn = [run if len(run) > 1 else [run[0], (run[0][0] + 4.0, run[0][1])] for run in drawn]
    path = " ".join(_joined(run) for run in drawn)
    area = " ".join(
        f"{_joined(run)} L{run[-1][0]:.1f},{LINE_HEIGHT:.1f} L{run[0][0]:.1f},{LINE_HEIGHT:.1f} Z" for run in drawn
    )
    return Line(path, area, max((value for _, value in points if value is not None), default=0))


def _joined(run: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in run)


@dataclass(frozen=True, slots=True)
class QueuePoint:
    """The queue at `at` (epoch seconds): jobs waiting and running, None where they were not measured."""

    at: float
    waiting: int | None
    running: int | None


@dataclass(slots=True)
class _Known:
    """The points of one fleet, and the number of the decision that the last of them stands for."""

    points: deque[QueuePoint] = field(default_factory=lambda: deque(maxlen=_MOST_POINTS))
    number: int = -1


class QueueHistory:
    """Remembers what it was shown, so that the ledger is asked only for what was missed; safe for any thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def last_hour(self, status: FleetStatus, now: float) -> tuple[QueuePoint, ...]:
        """Return a fleet's queue at each decision of the last hour up to `status`, in order.

        LedgerUnavailable when what was missed cannot be read.
        """
        last = status.last_decision
        if last is None:
            return ()
        number = _number(last.id)
        with self._lock:
            known = self._known.setdefault(status.fleet, _Known())
            if number == known.number + 1 and known.points:
                known.points.append(_point(last.at, status.queue))
            elif number != known.number or number < 0:
                known.points.clear()
                for inputs, decision in FleetStore(self._ledger).inputs(status.fleet, since=now - KEPT_S):
                    queue = None if inputs.snapshot is None else inputs.snapshot.queue
                    known.points.append(_point(decision.at, queue))
                    number = max(number, _number(decision.decision_id))
            known.number = number
            while known.points and known.points[0].at < now - KEPT_S:
                known.points.popleft()
            return tuple(known.points)


def _point(at: float, queue: QueueSnapshot | None) -> QueuePoint:
    return QueuePoint(at, None, None) if queue is None else QueuePoint(at, queue.waiting, queue.running)


def _number(decision_id: str) -> int:
    """Return the number in a decision's id, which counts a fleet's decisions; -1 for an id without one."""
    number = decision_id.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


@dataclass(frozen=True, slots=True)
class QueueLines:
    """The last hour of a queue, drawn: jobs waiting and jobs running on one scale."""

    waiting: Line
    running: Line
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class ShadowRow:
    """What a shadow proposed: a short name and the whole one, per group the size and whether it differs, and why."""

    name: str
    policy: str
    sizes: tuple[tuple[int, bool], ...]
    detail: str
    stands_in: bool


@dataclass(frozen=True, slots=True)
class FleetView:
    """One fleet as the page shows it; `held` are sentences on what holds it or is under way."""

    status: FleetStatus
    badges: tuple[Badge, ...]
    bars: tuple[Bar, ...]
    queue: QueueLines
    held: tuple[tuple[str, str], ...]
    sentence: str
    shadows: tuple[ShadowRow, ...] = ()
    learning: str = ""


def fleet_view(status: FleetStatus, mode: str, history: QueueHistory, now: float, learning: str = "") -> FleetView:
    """Return a fleet as the page shows it; LedgerUnavailable when its history cannot be read."""
    scale = bar_scale(status.groups)
    return FleetView(
        status=status,
        badges=badges(status, mode, now),
        bars=tuple(bar(group, scale) for group in status.groups),
        queue=_queue_lines(history, status, now),
        held=tuple(_held(status, now)),
        sentence=arrows(status.last_decision.sentence) if status.last_decision is not None else "",
        shadows=tuple(_shadow_row(shadow, status.groups) for shadow in status.shadows),
        learning=learning,
    )


def short_policy(policy: str) -> str:
    """Return a policy's name without parameters; of a model's SHA-256 the first digits are left."""
    sha = sha_of(policy)
    return f"{LEARNED}:{sha[:NAME_DIGITS]}" if sha else policy.partition(":")[0]


def _shadow_row(shadow: ShadowStatus, groups: Sequence[GroupStatus]) -> ShadowRow:
    pairs = zip(shadow.desired, groups, strict=False)
    sizes = tuple((size, size != (g.requested if g.desired is None else g.desired)) for size, g in pairs)
    return ShadowRow(short_policy(shadow.policy), shadow.policy, sizes, arrows(shadow.detail), shadow.stands_in)


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
        end = "until resumed" if pause.until is None else f"for {duration_text(pause.until - now)} more"
        what = "all changes" if pause.scope is PauseScope.ALL else f"scale-{pause.scope}"
        lines.append(("paused", f"{what}, by {pause.owner}, {end}: {pause.reason}"))
    if (pin := status.pin) is not None:
        sizes = ", ".join(f"{key} {size}" for key, size in pin.desired.items())
        lines.append(("pinned", f"at {sizes} by {pin.owner}, for {duration_text(pin.until - now)} more: {pin.reason}"))
    for intent in status.open_intents:
        since = duration_text(now - intent.created_at)
        lines.append(
            ("under way", f"{intent.group} {intent.before} → {intent.target} ({intent.intent_id}), for {since}")
        )
    for breaker in status.breakers:
        # What failed and was made good again is of no interest.
        if breaker.failures:
            end = f", left alone for {duration_text(breaker.open_until - now)} more" if breaker.open else ""
            failures = counted(breaker.failures, "failure")
            lines.append(("breaker open" if breaker.open else "breaker", f"{breaker.group}: {failures} in a row{end}"))
    for mark in status.capacity_marks:
        zone = mark.zone or "any zone"
        lines.append(("no capacity", f"{mark.vm_type} in {zone}, asked for again at {clock_time(mark.until, now)}"))
    cooling = [f"{c.group} scale-{c.direction} for {duration_text(c.remaining_s(now))}" for c in status.cooldowns]
    if cooling:
        lines.append(("cooling down", ", ".join(cooling)))
    return lines


@dataclass(frozen=True, slots=True)
class VmSummary:
    """The VMs of some fleets: how many there are, fell silent, never reported; the first of those with their fleet."""

    total: int
    silent: int
    unheard: int
    first: tuple[tuple[str, VmReport], ...]


def vm_summary(part: AutoscalingPart, fleets: Sequence[str]) -> VmSummary:
    """Return how many VMs there are and which do not report: the longest silent first, then those never heard of."""
    silent: list[tuple[str, VmReport]] = []
    total = 0
    for name in fleets:
        reports = _reports(part, name)
        total += len(reports)
        silent += [(name, report) for report in reports if not report.reporting]
    silent.sort(key=lambda item: silence(item[1]))
    unheard = sum(report.last_sample_at is None for _, report in silent)
    return VmSummary(total, len(silent) - unheard, unheard, tuple(silent[:SILENT_VMS]))


def vms_of(part: AutoscalingPart, fleet: str) -> tuple[VmReport, ...]:
    """Return a fleet's VMs, the silent ones first; none when the fleet is no longer managed."""
    return tuple(sorted(_reports(part, fleet), key=silence))


def _reports(part: AutoscalingPart, fleet: str) -> tuple[VmReport, ...]:
    try:
        return part.vms(fleet)
    except BadInput:
        return ()


def silence(report: VmReport) -> tuple[bool, bool, float, str, str]:
    """Return what to sort VMs by, so that those that fell silent come first."""
    longest = 0.0 if report.reporting else report.last_sample_at or 0.0
    return report.reporting, report.last_sample_at is None, longest, report.group, report.vm


def decision_item(seq: int, body: Mapping[str, Any]) -> DecisionItem:
    """Return a decision in a list from its recorded body."""
    # The sentence is change, reason, the proposal's detail and the rails' sentences; the page sets them apart.
    change, joint, _ = str(body["sentence"]).partition(f" ({body['reason']}): ")
    replaced = [
        f"{intent['group']}: {counted(len(intent['victims']), 'VM')} replaced"
        for intent in body["intents"]
        if intent["direction"] == Direction.REPLACE
    ]
    effects = {effect["rail"]: effect for effect in body["effects"] if effect["verdict"] != Verdict.PASSED}
    return DecisionItem(
        seq=seq,
        id=str(body["decision_id"]),
        subject=str(body["fleet"]),
        at=float(body["at"]),
        reason=str(body["reason"]),
        change=_change(change if joint else "held", replaced),
        why=arrows(str(body["proposal"]["detail"] if joint else change)),
        changed=bool(body["intents"]),
        rails=tuple(RailWord(name, str(e["verdict"]), arrows(str(e["detail"]))) for name, e in effects.items()),
    )


def _change(change: str, replaced: list[str]) -> str:
    changes = [] if replaced and change == "no change" else [arrows(change)]
    return ", ".join(changes + replaced)


@dataclass(frozen=True, slots=True)
class DrawnFleets:
    """One fleet, or all (`fleet` None), at time `at`: the fleets, their VMs, and the newest decisions on them."""

    fleet: str | None
    at: float
    fleets: tuple[FleetView, ...]
    vms: VmSummary
    decisions: tuple[DecisionItem, ...]
    main: ClassVar[str] = "fleets.html"
    side: ClassVar[str] = "fleets_side.html"

    @property
    def many(self) -> bool:
        """Whether each fleet has a row in place of a card."""
        return len(self.fleets) > MOST_CARDS


class FleetPage:
    """Draws the fleets of a part: overview, one fleet, its VMs, decisions on fleets; safe for any thread."""

    templates = Path(__file__).parent / "templates"

    def __init__(self, part: AutoscalingPart) -> None:
        self._part = part
        self._history = QueueHistory(part.host.ledger)

    def one(self, name: str) -> str:
        """Return the name of a fleet; UnknownName lists those there are."""
        return self._part.one(name)

    def gather(self, scene: Scene) -> DrawnFleets:
        """Return what there is to see of one fleet or of all; UnknownName lists the fleets there are."""
        part, ledger, now = self._part, self._part.host.ledger, scene.at
        if scene.subject is not None:
            statuses: tuple[FleetStatus, ...] = (fleet_status(ledger, part.one(scene.subject), now),)
        else:
            statuses = fleet_statuses(ledger, part.subjects(), now)
        listed = part.store.decisions_before(scene.seq + 1, fleet=scene.subject, limit=DECISIONS)
        return DrawnFleets(
            fleet=scene.subject,
            at=now,
            fleets=tuple(
                fleet_view(known, scene.mode, self._history, now, self._learnt(known.fleet, now)) for known in statuses
            ),
            vms=vm_summary(part, [known.fleet for known in statuses]),
            decisions=tuple(self.listed(row.seq, plain(row.decision)) for row in listed),
        )

    def _learnt(self, fleet: str, now: float) -> str:
        rounds = self._part.rounds
        return "" if rounds is None else rounds.line(fleet, now)

    def fragments(self, drawn: DrawnFleets, draw: Draw) -> dict[str, str]:
        """Return the HTML of badges, figures and VMs, by the names under which the page replaces them."""
        found = {}
        for shown in drawn.fleets:
            name = shown.status.fleet
            found[f"badges {name}"] = draw("part_badges", fleet=shown)
            found[f"fleet {name}"] = draw("part_fleet_row" if drawn.many else "part_fleet", fleet=shown, seen=drawn)
        return found | {"vms": draw("part_vms", seen=drawn)}

    def listed(self, seq: int, body: Mapping[str, Any]) -> DecisionItem:
        """Return a decision in a list from its recorded body."""
        return decision_item(seq, body)

    def explained(self, record: Record) -> tuple[str, Mapping[str, Any]]:
        """Return the page of one decision: all that `trimtab explain` shows."""
        found = self._part.store.decision(record.decision_id)
        item = decision_item(found.seq, plain(found.decision))
        return "decision", {"record": found, "why": explain(found), "item": item}

    def router(self, frame: Frame) -> APIRouter:
        """Return the pages of one fleet and of its VMs, and the list of decisions on fleets."""
        router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
        part, clock = self._part, self._part.host.clock

        @router.get("/fleets/{fleet}", response_model=None)
        def one_fleet(fleet: str) -> Response:
            """One fleet."""
            return frame.live(fleet)

        @router.get("/fleets/{fleet}/vms", response_model=None)
        def vms(fleet: str, page: PageNumber = 1) -> Response:
            """Every VM of a fleet, those that do not report first, a page at a time."""
            try:
                reports = vms_of(part, part.one(fleet))
            except (BadInput, LedgerError) as error:
                return frame.sorry(error)
            start = (page - 1) * VMS_PER_PAGE
            return frame.shown(
                "vms",
                fleet=fleet,
                rows=[(fleet, report) for report in reports[start : start + VMS_PER_PAGE]],
                total=len(reports),
                silent=sum(not report.reporting for report in reports),
                start=start,
                page=page,
                more=start + VMS_PER_PAGE < len(reports),
                now=clock.now(),
            )

        @router.get("/decisions", response_model=None)
        def decisions(fleet: OneFleet = None, before: Before = None, changed: bool = False) -> Response:
            """Decisions, the newest first, a page at a time."""
            try:
                listed = part.store.decisions_before(
                    before, fleet=fleet, limit=DECISIONS_PER_PAGE, changed_only=changed
                )
            except (BadInput, LedgerError) as error:
                return frame.sorry(error)
            return frame.shown(
                "decisions",
                items=[decision_item(row.seq, plain(row.decision)) for row in listed],
                fleet=fleet,
                changed=changed,
                before=before,
                following=listed[-1].seq if len(listed) == DECISIONS_PER_PAGE else None,
                now=clock.now(),
            )

        return router
