"""The fleets on the page: badges, bars of VMs, charts, what holds them, their VMs and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from agent.autoscaling.announcements import in_words
from agent.autoscaling.api import VmReport
from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.explain import explain
from agent.autoscaling.history import SPANS, Chart, FleetHistory, HistoryPoint, cost_chart, queue_chart, size_charts
from agent.autoscaling.holds import Hold, Tone, holds
from agent.autoscaling.policies.ppo_lstm import LEARNED, NAME_DIGITS, sha_of
from agent.autoscaling.sentence import plain_sentence
from agent.autoscaling.state import DecisionRow
from agent.autoscaling.view import FleetStatus, GroupStatus, ShadowStatus, fleet_status, fleet_statuses
from agent.kernel.http import LARGEST_SEQ
from agent.kernel.page import Alert, DecisionItem, Draw, Frame, Scene, collapsed
from agent.kernel.store import Record
from agent.kernel.text import arrows, clock_minute, counted
from domain.decisions import Decision, Mode, Reason, Verdict
from domain.errors import BadInput, LedgerError
from domain.subject import fleet_subject
from domain.units import HOUR_S

if TYPE_CHECKING:
    from agent.autoscaling.decision import AutoscalingPart

MOST_CARDS = 4
"""With more fleets than these each has a row instead of a card; its card is on its own page."""
DECISIONS, DECISIONS_OF_FEW = 15, 60
"""Read for the list of the newest; of few fleets more, since what repeats has one row."""
DECISIONS_PER_PAGE = 50
MOST_ITEMS = 2000
"""Decisions in lists that are kept."""
VMS_PER_PAGE = 100
OneFleet = Annotated[str | None, Query(max_length=63)]
Before = Annotated[int | None, Query(ge=1, le=LARGEST_SEQ)]
Hours = Annotated[int, Query(ge=1, le=24 * 31)]
PageNumber = Annotated[int, Query(ge=1, le=100_000)]

SILENT_VMS = 12


def badges(fleet: FleetStatus, mode: str, now: float) -> tuple[Hold, ...]:
    """Return a fleet's badges, its mode first; `mode` is the agent's, for a fleet not yet decided on."""
    shown = [_mode(fleet.mode or mode)]
    if fleet.leader is False:
        shown.append(Hold("not leader", "another agent leads; this one only watches", Tone.HELD))
    if fleet.last_tick_at is None:
        shown.append(Hold("no decision yet", "nothing was ever decided for this fleet", Tone.PLAIN))
    shown += [one for one in holds(fleet, now) if one.tone is not None]
    if fleet.announced:
        shown.append(Hold("work announced", "; ".join(in_words(one) for one in fleet.announced), Tone.PLAIN))
    if fleet.last_decision is not None and fleet.last_decision.reason == Reason.CLOUD_UNREADABLE:
        shown.append(Hold("AWS unreadable", fleet.last_decision.sentence, Tone.BAD))
    elif fleet.last_decision is not None and fleet.last_decision.reason == Reason.GROUP_UNSUPPORTED:
        shown.append(Hold("not managed", fleet.last_decision.sentence, Tone.BAD))
    elif fleet.stale_minutes:
        missing = ", ".join(fleet.last_decision.absent) if fleet.last_decision is not None else ""
        shown.append(Hold(f"holding {fleet.stale_minutes} min", f"absent: {missing or 'enough reports'}", Tone.HELD))
    return tuple(shown)


def fleet_alerts(fleet: FleetStatus, now: float) -> tuple[Alert, ...]:
    """Return what the banner says of a fleet: that no VM reports, or how many are silent, and that its sizes are held.

    As of the last decision; `now` decides whether times have a date.
    """
    if fleet.due is None or fleet.last_tick_at is None or not fleet.due:
        return ()
    held = "; sizes are held" if fleet.stale_minutes else ""
    if not fleet.reported:
        newest = None if fleet.vm_age_s is None else fleet.last_tick_at - fleet.vm_age_s
        since = "has ever reported" if newest is None else f"reports since {clock_minute(newest, now)}"
        return (Alert(fleet.fleet, f"No VM {since}{held}."),)
    silent = [(group.silent, group.key) for group in fleet.groups if group.silent]
    if not silent:
        return (Alert(fleet.fleet, f"{fleet.reported} of {counted(fleet.due, 'VM')} report{held}."),) if held else ()
    groups = ", ".join(f"{count} of {key}" for count, key in silent)
    number = sum(count for count, _ in silent)
    return (Alert(fleet.fleet, f"{counted(number, 'VM is', 'VMs are')} silent ({groups}){held}."),)


def _mode(mode: str) -> Hold:
    if mode == Mode.ACT:
        return Hold("ACT", "decides and does it", Tone.ON)
    return Hold("OBSERVE", "decides and records; nothing in AWS is changed", Tone.PLAIN)


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
class ShadowRow:
    """What a shadow proposed: a short name and the whole one, per group the size and whether it differs, and why."""

    name: str
    policy: str
    sizes: tuple[tuple[int, bool], ...]
    detail: str
    stands_in: bool


@dataclass(frozen=True, slots=True)
class FleetView:
    """One fleet as the page shows it."""

    status: FleetStatus
    badges: tuple[Hold, ...]
    bars: tuple[Bar, ...]
    queue: Chart
    held: tuple[Hold, ...]
    sentence: str
    policy: str
    charts: tuple[Chart, ...] = ()
    shadows: tuple[ShadowRow, ...] = ()
    learning: str = ""


def fleet_view(
    status: FleetStatus,
    mode: str,
    points: Sequence[HistoryPoint],
    now: float,
    learning: str = "",
    alone: bool = False,
    many: bool = False,
) -> FleetView:
    """Return a fleet as the page shows it, with its last hour.

    alone: with all charts. many: among others, each in a row.
    """
    scale = bar_scale(status.groups)
    sentence = arrows(status.last_decision.sentence) if status.last_decision is not None else ""
    return FleetView(
        status=status,
        badges=badges(status, mode, now),
        bars=() if many else tuple(bar(group, scale) for group in status.groups),
        queue=queue_chart(points, now, small=many),
        charts=(*size_charts(status, points, now), cost_chart(points, now)) if alone else (),
        held=tuple(replace(one, detail=arrows(one.detail)) for one in holds(status, now)),
        sentence=sentence,
        policy=short_policy(status.policy or ""),
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


@dataclass(frozen=True, slots=True)
class VmSummary:
    """The VMs of some fleets: how many there are, fell silent, never reported; the first of those with their fleet.

    elsewhere: of how many fleets another agent alone reads the VMs, since it leads them.
    """

    total: int
    silent: int
    unheard: int
    first: tuple[tuple[str, VmReport], ...]
    elsewhere: int = 0


def vm_summary(part: AutoscalingPart, fleets: Sequence[str]) -> VmSummary:
    """Return how many VMs there are and which do not report: the longest silent first, then those never heard of."""
    silent: list[tuple[str, VmReport]] = []
    total, found = 0, part.vms_of(set(fleets))
    for name, reports in found.items():
        total += len(reports)
        silent += [(name, report) for report in reports if not report.reporting]
    silent.sort(key=lambda item: silence(item[1]))
    unheard = sum(report.last_sample_at is None for _, report in silent)
    elsewhere = len(set(fleets).intersection(part.managed()) - found.keys())
    return VmSummary(total, len(silent) - unheard, unheard, tuple(silent[:SILENT_VMS]), elsewhere)


def vms_of(part: AutoscalingPart, fleet: str) -> tuple[VmReport, ...]:
    """Return a fleet's VMs, the silent ones first; none when the fleet is no longer managed.

    StateConflict when another agent leads it.
    """
    return tuple(sorted(part.vms(fleet) if fleet in part.managed() else (), key=silence))


def silence(report: VmReport) -> tuple[bool, bool, float, str, str]:
    """Return what to sort VMs by, so that those that fell silent come first."""
    longest = 0.0 if report.reporting else report.last_sample_at or 0.0
    return report.reporting, report.last_sample_at is None, longest, report.group, report.vm


DAMAGED: Final = "its inputs are damaged: trimtab explain names the row and the remedy"


def decision_item(seq: int, made: Decision, inputs: DecisionInputs | None) -> DecisionItem:
    """Return a decision in a list: its plain sentence, and what it has in common with those that say the same.

    inputs: None where they are damaged.
    """
    sentence = DAMAGED if inputs is None else plain_sentence(made, inputs)
    change, _, why = arrows(sentence).partition(": ")
    limits = [f"{effect.rail} {effect.verdict}" for effect in made.effects if effect.verdict is not Verdict.PASSED]
    return DecisionItem(
        seq=seq,
        id=made.decision_id,
        subject=made.fleet,
        at=made.at,
        reason=made.reason.value,
        change=change,
        why=why,
        changed=bool(made.intents),
        repeats="" if made.intents else "; ".join([change, *limits]),
    )


@dataclass(frozen=True, slots=True)
class DrawnFleets:
    """One fleet, or all (`fleet` None), at time `at`: the fleets, their VMs, and the newest decisions on them.

    leaders: of several agents, by the path of each subject.
    """

    fleet: str | None
    at: float
    fleets: tuple[FleetView, ...]
    vms: VmSummary
    decisions: tuple[DecisionItem, ...]
    alerts: tuple[Alert, ...]
    leaders: Mapping[str, str]
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
        self._history = FleetHistory(part.store)
        self._items: dict[int, DecisionItem] = {}

    def one(self, name: str) -> str:
        """Return the name of a fleet; UnknownName lists those there are."""
        return self._part.one(name)

    def gather(self, scene: Scene) -> DrawnFleets:
        """Return what there is to see of one fleet or of all; UnknownName lists the fleets there are."""
        part, now = self._part, scene.at
        if scene.subject is not None:
            statuses: tuple[FleetStatus, ...] = (fleet_status(part.store, part.one(scene.subject), now),)
        else:
            statuses = fleet_statuses(part.store, part.subjects(), now)
        many, alone = len(statuses) > MOST_CARDS, scene.subject is not None
        most = DECISIONS if many else DECISIONS_OF_FEW
        listed = part.store.decisions_before(scene.seq + 1, fleet=scene.subject, limit=most)
        points, champions = self._history.last_hour(statuses, now), part.champions()
        return DrawnFleets(
            fleet=scene.subject,
            at=now,
            fleets=tuple(
                fleet_view(
                    known,
                    scene.mode,
                    points[known.fleet],
                    now,
                    part.learnt(known.fleet, known.tuned, now, champions),
                    alone=alone,
                    many=many,
                )
                for known in statuses
            ),
            vms=vm_summary(part, [known.fleet for known in statuses]),
            decisions=tuple(self._listed(listed)),
            alerts=tuple(alert for known in statuses for alert in fleet_alerts(known, now)),
            leaders=scene.leaders,
        )

    def fragments(self, drawn: DrawnFleets, draw: Draw) -> dict[str, str]:
        """Return the HTML of badges, figures and VMs, by the names under which the page replaces them."""
        found = {}
        for shown in drawn.fleets:
            name = shown.status.fleet
            leader = drawn.leaders.get(fleet_subject(name).path)
            found[f"badges {name}"] = draw("part_badges", fleet=shown, leader=leader)
            found[f"fleet {name}"] = draw("part_fleet_row" if drawn.many else "part_fleet", fleet=shown, seen=drawn)
        return found | {"vms": draw("part_vms", seen=drawn)}

    def listed(self, seq: int, body: Mapping[str, Any]) -> DecisionItem:
        """Return a decision in a list from its recorded body."""
        found = self._part.store.decision(str(body["decision_id"]))
        return self._listed([DecisionRow(seq, found.decision)])[0]

    def _listed(self, rows: Sequence[DecisionRow]) -> list[DecisionItem]:
        """Return decisions in a list; what was read once is kept, for nothing of it changes."""
        before = self._items
        new = [row for row in rows if row.seq not in before]
        inputs = self._part.store.inputs_of([row.decision.decision_id for row in new]) if new else {}
        made = {row.seq: decision_item(row.seq, row.decision, inputs.get(row.decision.decision_id)) for row in new}
        kept = before | made
        self._items = kept if len(kept) <= MOST_ITEMS else made
        return [kept[row.seq] for row in rows]

    def explained(self, record: Record) -> tuple[str, Mapping[str, Any]]:
        """Return the page of one decision: all that `trimtab explain` shows."""
        found = self._part.store.decision(record.decision_id)
        return "decision", {
            "record": found,
            "why": explain(found),
            "item": decision_item(found.seq, found.decision, found.inputs),
        }

    def router(self, frame: Frame) -> APIRouter:
        """Return the pages of one fleet and of its VMs, and the list of decisions on fleets."""
        router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
        part, clock = self._part, self._part.host.clock

        @router.get("/fleets/{fleet}", response_model=None)
        def one_fleet(fleet: str) -> Response:
            """One fleet."""
            return frame.live(fleet_subject(fleet))

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

        @router.get("/fleets/{fleet}/history", response_model=None)
        def history(fleet: str, hours: Hours = 24) -> Response:
            """A fleet's queue, sizes by type and cost over hours or days."""
            try:
                name, now = part.one(fleet), clock.now()
                status = fleet_status(part.store, name, now)
                points = self._history.over(status, now, hours * HOUR_S)
            except (BadInput, LedgerError) as error:
                return frame.sorry(error)
            begin = now - hours * HOUR_S
            charts = (
                queue_chart(points, now, begin),
                *size_charts(status, points, now, begin),
                cost_chart(points, now, begin),
            )
            return frame.shown("history", fleet=name, hours=hours, spans=SPANS, charts=charts, points=len(points))

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
                items=collapsed(self._listed(listed)),
                fleet=fleet,
                changed=changed,
                before=before,
                following=listed[-1].seq if len(listed) == DECISIONS_PER_PAGE else None,
                now=clock.now(),
            )

        return router
