"""The screens of a dry run: lines, JSON, and the terminal view of fleet, queue, rent, faults and the last decisions."""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agent.autoscaling.report import MinuteReport
from agent.kernel.text import fitting, in_minutes
from agent.rehearsal.faults import InjectedFault
from domain.clock import Clock
from domain.decisions import Decision, Direction, Event, Mode, Outcome, Proposal, RailEffect, Reason, Verdict
from domain.fleet import Fleet
from domain.snapshot import GroupSnapshot, Snapshot
from domain.units import MINUTE_S

ROUTINE = frozenset({Reason.PROTECTED})
"""Events that are in the ledger but not worth a line."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the loop, and the dollars of rent so far."""

    fleet: Fleet
    report: MinuteReport
    rent: float


class Screen:
    """Shows a dry run while it goes on; this one shows nothing."""

    def workload(self, description: str) -> None:
        """Show which jobs run and where they come from."""

    def check(self, what: str, detail: str) -> None:
        """Show that one part is up."""

    def running(
        self, clock: Clock, start: float, minutes: int, policy: str, shadows: tuple[str, ...]
    ) -> AbstractContextManager[None]:
        """Show the simulated minutes from `start` (epoch seconds) on, while the block runs."""
        return nullcontext()

    def fault(self, injected: InjectedFault) -> None:
        """Show a fault."""

    def turn(self, turn: Turn) -> None:
        """Show one turn, which is over."""

    def comparing(self) -> AbstractContextManager[object]:
        """Show that the other fleets are being simulated, while the block runs."""
        return nullcontext()


def clock_text(at: float) -> str:
    """Return hours, minutes and seconds (UTC) of a time in epoch seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def notable(report: MinuteReport) -> tuple[list[Event], list[Decision], list[Outcome]]:
    """Return what is worth a line in this turn: events, decisions, and outcomes that are final or failures.

    A decision is worth a line when it changed the fleet, was changed by a rail, or could not be made.
    """
    requested = {snapshot.fleet: snapshot.requested for snapshot in report.snapshots}

    def worth_a_line(decision: Decision) -> bool:
        changes = decision.desired != requested.get(decision.fleet)
        return changes or any(effect.verdict is not Verdict.PASSED for effect in decision.effects)

    return (
        [event for event in report.events if event.reason not in ROUTINE],
        [decision for decision in report.decisions if worth_a_line(decision)],
        [outcome for outcome in report.outcomes if outcome.status.final or outcome.failure is not None],
    )


class LineScreen(Screen):
    """One line per event, for logs and pipes; a decision that is held like the one before it has none."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._held: dict[str, tuple[Reason, tuple[int, ...]]] = {}

    def _write(self, line: str) -> None:
        self._out.write(in_minutes(line) + "\n")
        self._out.flush()

    def workload(self, description: str) -> None:
        """Write the description."""
        self._write(description)

    def check(self, what: str, detail: str) -> None:
        """Write the part and its address."""
        self._write(f"up: {what}: {detail}")

    def running(
        self, clock: Clock, start: float, minutes: int, policy: str, shadows: tuple[str, ...]
    ) -> AbstractContextManager[None]:
        """Write the beginning and the policies."""
        self._write(f"{clock_text(start)} {minutes} min begin; policy {policy}, shadows {', '.join(shadows) or 'none'}")
        return nullcontext()

    def fault(self, injected: InjectedFault) -> None:
        """Write the fault."""
        vm = f": {injected.vm}" if injected.vm else ""
        self._write(f"{clock_text(injected.at)} FAULT {injected.fault.title}{vm}")

    def turn(self, turn: Turn) -> None:
        """Write what is worth a line."""
        events, decisions, outcomes = notable(turn.report)
        for event in events:
            self._write(f"{clock_text(event.at)} {event.subject.name} {event.reason}: {event.detail}")
        for decision in decisions:
            if decision.intents or self._held.get(decision.fleet) != (decision.reason, decision.desired):
                self._write(f"{clock_text(decision.at)} {decision.decision_id} {decision.sentence}")
        self._held = {d.fleet: (d.reason, d.desired) for d in decisions if not d.intents}
        for outcome in outcomes:
            done = f"{outcome.achieved} of {outcome.asked}"
            self._write(f"{clock_text(outcome.at)} {outcome.intent_id} {outcome.status}, {done}: {outcome.detail}")
        if turn.report.failure:
            self._write(f"{clock_text(turn.report.at)} turn failed: {turn.report.failure}")


class JsonScreen(Screen):
    """One JSON object a line: checks and faults; the ledger's entries follow when the run is over."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def write(self, **entry: Any) -> None:
        """Write one object."""
        self._out.write(json.dumps(entry, sort_keys=True) + "\n")
        self._out.flush()

    def workload(self, description: str) -> None:
        """Write the description."""
        self.write(kind="workload", detail=description)

    def check(self, what: str, detail: str) -> None:
        """Write the part and its address."""
        self.write(kind="up", what=what, detail=detail)

    def running(
        self, clock: Clock, start: float, minutes: int, policy: str, shadows: tuple[str, ...]
    ) -> AbstractContextManager[None]:
        """Write the beginning and the policies."""
        self.write(kind="begin", at=start, minutes=minutes, policy=policy, shadows=list(shadows))
        return nullcontext()

    def fault(self, injected: InjectedFault) -> None:
        """Write the fault."""
        self.write(kind="fault", at=injected.at, detail=injected.fault.title, vm=injected.vm)


SPARKS = "▁▂▃▄▅▆▇█"
KEPT_LINES = 40
FEWEST_LOG_LINES = 3
ROOMY = 30
"""Rows of a terminal from which on the parts of the view have an empty line between them."""
FRAME = 3
"""Rows of the frame, and the one that the cursor stands in."""
_AFTER = re.compile(r" after the last scale-(in|out)")
_LIMITED = re.compile(r"^.*\d (?:held at|shrunk to) \d+: ")
"""The sizes before the reason in what a rail says of them."""
WITH_TYPES = 68
"""Columns from which on the fleet's table names the type of each group."""
WIDE = 88
"""Columns that the fleet's table takes with its legend."""
REFRESHES_PER_S = 4
ON_THE_FAULTS_LINE = frozenset({Reason.METRICS_LOST, Reason.METRICS_RETURNED, Reason.CAPACITY_RETURNED})


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log; one with the same `key` as the line before it takes its place and counts it.

    short: takes the place of `text` where that would be cut in the middle of a clause, "" for the same.
    """

    at: float
    text: str
    style: str = ""
    key: str = ""
    times: int = 1
    short: str = ""


class FaultResponses:
    """The injected faults, each with the responses that the turns since then have shown, in order."""

    def __init__(self) -> None:
        self._faults: list[tuple[InjectedFault, dict[Reason, str]]] = []
        self._types: list[str] = []

    def add(self, injected: InjectedFault) -> None:
        """Add a fault that was just injected."""
        self._faults.append((injected, {}))

    def watch(self, fleet: Fleet, report: MinuteReport) -> None:
        """Take what a turn of the loop shows."""
        reasons = [(event.reason, event.about) for event in report.events]
        reasons += [(d.reason, "") for d in report.decisions if d.reason is not Reason.CAPACITY_FALLBACK]
        reasons += [(outcome.reason, "") for outcome in report.outcomes]
        for decision in report.decisions:
            self._types += [name for name in fallback_types(fleet, decision) if name not in self._types]
        for injected, shown in self._faults:
            responses = injected.fault.responses
            for reason, subject in reasons:
                if reason in responses and reason not in shown and injected.vm in ("", subject):
                    shown[reason] = responses[reason]
            if self._types and Reason.CAPACITY_FALLBACK in responses:
                shown[Reason.CAPACITY_FALLBACK] = f"{responses[Reason.CAPACITY_FALLBACK]} to {', '.join(self._types)}"

    def lines(self) -> list[RenderableType]:
        """Return one line per fault: when it was injected, its title, and the responses."""
        lines: list[RenderableType] = []
        for injected, shown in self._faults:
            responses = Text(" → ".join(shown.values()), style="green") if shown else Text("…", style="yellow")
            title = (f"{clock_text(injected.at)[:5]} ⚡ {injected.fault.title}", "magenta")
            lines.append(_one_line(Text.assemble(title, " → ", responses)))
        return lines


def fallback_types(fleet: Fleet, decision: Decision) -> list[str]:
    """Return the types that a decision requests in place of one that AWS does not have."""
    moved = [effect for effect in decision.effects if effect.reason is Reason.CAPACITY_FALLBACK]
    acting = {intent.group for intent in decision.intents if intent.direction is Direction.OUT}
    return [
        group.vm_type.name
        for k, group in enumerate(fleet.groups)
        if group.key in acting and any(effect.after[k] > effect.before[k] for effect in moved)
    ]


class LiveScreen(Screen):
    """The terminal view; drawn a few times a second, so that the clock goes on between the turns."""

    def __init__(self, console: Console, plan: str) -> None:
        self._console, self._plan = console, plan
        # Drawing happens in a thread of its own.
        self._lock = Lock()
        self._responses = FaultResponses()
        self._lines: deque[Line] = deque(maxlen=KEPT_LINES)
        self._waiting: deque[int] = deque(maxlen=60)
        self._turn: Turn | None = None
        self._mode: Mode | None = None
        self._shadows: list[str] = []
        self._finished = 0
        self._clock: Clock | None = None
        self._start, self._minutes, self._policy = 0.0, 60, ""

    def workload(self, description: str) -> None:
        """Print the description above everything."""
        self._console.print(description, style="dim", highlight=False)

    def check(self, what: str, detail: str) -> None:
        """Print a check mark."""
        self._console.print(Text.assemble(("✓ ", "green"), what, "  ", (detail, "dim")), overflow="fold")

    @contextmanager
    def running(
        self, clock: Clock, start: float, minutes: int, policy: str, shadows: tuple[str, ...]
    ) -> Iterator[None]:
        """Draw while the block runs; the last picture stays."""
        self._clock, self._start, self._minutes = clock, start, minutes
        self._policy = policy.partition(":")[0]
        with Live(get_renderable=lambda: self, console=self._console, refresh_per_second=REFRESHES_PER_S):
            yield

    def fault(self, injected: InjectedFault) -> None:
        """Add the fault."""
        with self._lock:
            self._responses.add(injected)

    def turn(self, turn: Turn) -> None:
        """Take a turn; one without a snapshot leaves the fleet as the last one showed it."""
        report = turn.report
        with self._lock:
            self._responses.watch(turn.fleet, report)
            for line in log_lines(turn):
                self._add(line)
            for decision in report.decisions:
                self._mode = decision.mode
                self._shadows = [self._shadow_text(turn, decision, shadow) for shadow in decision.shadows]
            for queue in (snapshot.queue for snapshot in report.snapshots if snapshot.queue is not None):
                self._waiting.append(queue.waiting)
                self._finished = max(self._finished, queue.submitted - queue.waiting - queue.running)
            if not report.snapshots and self._turn is not None:
                turn = replace(turn, report=replace(report, snapshots=self._turn.report.snapshots))
            self._turn = turn

    def comparing(self) -> AbstractContextManager[object]:
        """Show a status line."""
        return self._console.status("simulating the same jobs on other fleets")

    def _add(self, line: Line) -> None:
        last = self._lines[-1] if self._lines else None
        if last is not None and line.key and last.key == line.key:
            self._lines[-1] = replace(line, times=last.times + 1)
        else:
            self._lines.append(line)

    def _shadow_text(self, turn: Turn, decision: Decision, shadow: Proposal) -> str:
        name = shadow.policy.partition(":")[0]
        requested = next((s.requested for s in turn.report.snapshots if s.fleet == decision.fleet), None)
        if requested is None:
            return name
        moves = spelled_moves(turn.fleet, requested, shadow.desired)
        return f"{name} would {f'want {moves}' if moves else 'change nothing'}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the present state."""
        with self._lock:
            body = self._body(console, options.max_width - 4)
        yield Panel(body, title=f"trimtab dry run, --fault {self._plan}", title_align="left")

    def _body(self, console: Console, width: int) -> RenderableType:
        now = self._clock.now() if self._clock is not None else self._start
        between: list[RenderableType] = [""] if console.height >= ROOMY else []
        deciding = Text.assemble(("policy ", "dim"), self._policy)
        for shadow in self._shadows:
            deciding.append_text(Text.assemble(("   shadow ", "dim"), shadow))
        parts: list[RenderableType] = [self._header(now), _one_line(deciding)]
        if self._turn is None:
            return Group(*parts, *between, Text("the first minute is being measured", style="dim"))
        snapshot = next(iter(self._turn.report.snapshots), None)
        if snapshot is not None:
            asked = {intent.group: intent.target for made in self._turn.report.decisions for intent in made.intents}
            parts += [*between, fleet_table(self._turn.fleet, snapshot, asked, width)]
        parts += [*between, *self._jobs_and_rent(self._turn, snapshot, width)]
        faults = self._responses.lines()
        if faults:
            parts += [*between, *faults]
        # All but the table are a row each.
        taken = len(parts) + (0 if snapshot is None else len(snapshot.groups)) + len(between)
        room = console.height - FRAME - taken
        lines = list(self._lines)[-max(FEWEST_LOG_LINES, room) :]
        if lines:
            parts += [*between, *(_drawn(line, width) for line in lines)]
        return Group(*parts)

    def _header(self, now: float) -> RenderableType:
        minute = min(float(self._minutes), max(0.0, (now - self._start) / MINUTE_S))
        badge = Text.assemble(
            (" DRY RUN, fake AWS ", "bold white on blue"),
            " ",
            _mode_badge(self._mode),
            f"  {clock_text(max(now, self._start))} UTC  minute {minute:2.0f} of {self._minutes} ",
        )
        grid = Table.grid(expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        bar = ProgressBar(total=self._minutes, completed=minute, complete_style="cyan", finished_style="cyan")
        grid.add_row(badge, bar)
        return grid

    def _jobs_and_rent(self, turn: Turn, snapshot: Snapshot | None, width: int) -> list[RenderableType]:
        queue = snapshot.queue if snapshot is not None else None
        if queue is None:
            counts = Text("no reading of the queue", style="bold yellow")
        else:
            style = "bold yellow" if queue.waiting else ""
            counts = Text.assemble(
                (f"{queue.waiting:3d} waiting", style), f"  {queue.running:3d} running  {self._finished:3d} done  "
            )
        counts.append(sparkline(self._waiting, max(0, width - len(counts) - 8)), style="cyan")
        cost = Text(f"${turn.rent:6.3f} so far")
        if snapshot is not None:
            present = (group.warm + group.booting + group.draining for group in snapshot.groups)
            rate = sum(n * price for n, price in zip(present, turn.fleet.prices_per_hour, strict=True))
            cost.append(f"   ${rate:.3f} per hour now")
            if snapshot.absent:
                cost.append(f"   holding: no {', '.join(snapshot.absent)}", style="bold yellow")
        return [_one_line(Text("jobs    ", style="dim") + counts), _one_line(Text("rent    ", style="dim") + cost)]


def fleet_table(fleet: Fleet, snapshot: Snapshot, asked: Mapping[str, int], width: int) -> Table:
    """Return the fleet by group: a bar of its VMs, and how many are requested, warm, booting and draining."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    wide = width >= WIDE
    legend = Text.assemble(("█", "green"), " warm ", ("▒", "yellow"), " booting ", ("░", "red"), " draining")
    table.add_column("group", no_wrap=True)
    if width >= WITH_TYPES:
        table.add_column("type", no_wrap=True)
    table.add_column(legend if wide else "VMs", no_wrap=True)
    for heading in ("requested", "warm", "booting", "draining", "CPU"):
        table.add_column(heading, justify="right", no_wrap=True)
    for group, seen in zip(fleet.groups, snapshot.groups, strict=True):
        cpu = f"{seen.cpu_mean:.0%}" if seen.cpu_mean is not None and seen.warm else "–"
        numbers = [str(n) if n else "·" for n in (seen.warm, seen.booting, seen.draining)]
        target = asked.get(group.key, seen.requested)
        requested = Text(str(seen.requested) if seen.requested else "·")
        if target != seen.requested:
            requested = Text(f"{seen.requested}→{target}", style="bold")
        names = (group.key, group.vm_type.name) if width >= WITH_TYPES else (group.key,)
        table.add_row(*names, vm_bar(seen, 2 if wide else 1), requested, *numbers, cpu)
    return table


def vm_bar(seen: GroupSnapshot, cells_per_vm: int) -> Text:
    """Return one mark per VM: warm, booting, draining, and a dot for each more that the group may have."""
    silent = min(seen.silent, seen.warm)
    bar = Text()
    for count, mark, style in (
        (seen.warm - silent, "█", "green"),
        (silent, "█", "bright_black"),
        (seen.booting, "▒", "yellow"),
        (seen.draining, "░", "red"),
        (max(0, seen.maximum - seen.warm - seen.booting - seen.draining), "·", "dim"),
    ):
        bar.append((mark * cells_per_vm + " ") * count if cells_per_vm > 1 else mark * count, style=style)
    return bar


def log_lines(turn: Turn) -> list[Line]:
    """Return the log's lines of one turn, without routine outcomes and without what a fault's own line shows."""
    fleet, report = turn.fleet, turn.report
    events, decisions, outcomes = notable(report)
    lines = event_lines(events)
    requested = {snapshot.fleet: snapshot.requested for snapshot in report.snapshots}
    lines += [_decision_line(fleet, decision, requested.get(decision.fleet)) for decision in decisions]
    for outcome in outcomes:
        complete = outcome.achieved >= outcome.asked
        if outcome.reason is not Reason.DONE or not complete:
            done = f"{outcome.intent_id} {outcome.status}, {outcome.achieved} of {outcome.asked}"
            lines.append(Line(outcome.at, f"{done}: {outcome.detail}", "green" if complete else "red"))
    if report.failure:
        lines.append(Line(report.at, f"turn failed: {report.failure}", "bold red", "failure"))
    return lines


def event_lines(events: Sequence[Event]) -> list[Line]:
    """Return one line for each kind of event: the first of them, and how many more there were."""
    over = {event.about for event in events if event.reason is Reason.DRAINED}
    by_reason: dict[Reason, list[Event]] = {}
    for event in events:
        if event.reason in ON_THE_FAULTS_LINE or (event.reason is Reason.DRAINING and event.about in over):
            continue
        by_reason.setdefault(event.reason, []).append(event)
    return [
        Line(same[0].at, same[0].detail + (f" (and {len(same) - 1} more)" if same[1:] else ""), "yellow")
        for same in by_reason.values()
    ]


def _decision_line(fleet: Fleet, decision: Decision, requested: tuple[int, ...] | None) -> Line:
    """Return a change with its reason, or what was held and by which rail; minutes held alike share a key."""
    rails = [e for e in decision.effects if e.verdict is not Verdict.PASSED and e.detail]
    name = decision.decision_id
    if requested is None:
        return Line(decision.at, f"{name} {decision.sentence}", "yellow", f"held {decision.reason}")
    if decision.desired != requested:
        # What held another group back is no reason for the change of this one.
        changed = [k for k, was in enumerate(requested) if was != decision.desired[k]]
        of_change = [effect for effect in rails if any(effect.before[k] != effect.after[k] for k in changed)]
        why = _limit(of_change) or decision.proposal.detail or str(decision.reason)
        return Line(
            decision.at,
            f"{name} {spelled_moves(fleet, requested, decision.desired)}  ({why})",
            "bold",
            short=f"{name} {summed_moves(requested, decision.desired)}  ({why})",
        )
    wanted = decision.proposal.desired
    why = _limit(rails) or str(decision.reason)
    return Line(
        decision.at,
        f"{name} held: {spelled_moves(fleet, requested, wanted) or 'no change'}  ({why})",
        "dim",
        f"held {decision.reason}",
        short=f"{name} held: {summed_moves(requested, wanted)}  ({why})",
    )


def _limit(rails: Sequence[RailEffect]) -> str:
    """Return the reason of the last rail without the sizes and the direction, which stand before it; "" for none."""
    return _AFTER.sub("", _LIMITED.sub("", rails[-1].detail)) if rails else ""


def summed_moves(before: Sequence[int], after: Sequence[int]) -> str:
    """Return the change of the whole fleet, such as `9→4 VMs`."""
    return f"{sum(before)}→{sum(after)} VMs"


def spelled_moves(fleet: Fleet, before: Sequence[int], after: Sequence[int]) -> str:
    """Return the changes per group, such as `workers_m 2→3`; "" when there is none."""
    moves = (
        f"{group.key} {was}→{becomes}"
        for group, was, becomes in zip(fleet.groups, before, after, strict=True)
        if was != becomes
    )
    return ", ".join(moves)


def sparkline(values: Sequence[int], width: int) -> str:
    """Return the last `width` values as bars; the highest is the full height."""
    shown = list(values)[-width:] if width else []
    most = max([*shown, 1])
    return "".join(SPARKS[round(value / most * (len(SPARKS) - 1))] for value in shown)


def _drawn(line: Line, width: int) -> Text:
    times = f" ×{line.times}" if line.times > 1 else ""
    head = f"{clock_text(line.at)[:5]}{times} "
    texts = [fitting(in_minutes(text), width - len(head)) for text in (line.text, line.short) if text]
    text = next((text for text in texts if not text.endswith("…")), texts[0])
    return _one_line(Text.assemble((head, "dim"), (text, line.style)))


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _mode_badge(mode: Mode | None) -> tuple[str, str]:
    if mode is None:
        return "", ""
    return (" ACT ", "bold white on red") if mode is Mode.ACT else (" OBSERVE ", "bold black on yellow")
