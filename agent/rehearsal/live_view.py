"""The terminal view of a dry run: fleet, queue, money, faults and how they were met, and the last decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agent.rehearsal.fault_outcomes import Answers
from agent.rehearsal.screen import Moment, clock_text, notable
from agent.rehearsal.story import Struck
from domain.clock import Clock
from domain.decisions import Decision, Event, Mode, Reason, Verdict
from domain.fleet import Fleet
from domain.snapshot import GroupSnapshot, Snapshot

SPARKS = "▁▂▃▄▅▆▇█"
KEPT_LINES = 40
LINES_AROUND = 17
"""Rows of the view besides the log and the faults."""
FEWEST_LOG_LINES = 3
WIDE = 88
"""Columns that the fleet's table takes with its legend."""
REFRESHES_PER_S = 4
ROUTINE_OUTCOMES = frozenset({Reason.DONE})
ON_THE_FAULTS_LINE = frozenset({Reason.METRICS_LOST, Reason.METRICS_RETURNED, Reason.CAPACITY_RETURNED})


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log; one with the same `key` as the line before it takes its place and counts it."""

    at: float
    text: str
    style: str = ""
    key: str = ""
    times: int = 1


@dataclass(slots=True)
class Picture:
    """What there is to draw; replaced as a whole after each turn, so that drawing never sees half of one."""

    moment: Moment | None = None
    mode: Mode | None = None
    shadow: str = ""
    finished: int = 0
    waiting: tuple[int, ...] = ()
    lines: tuple[Line, ...] = ()
    faults: tuple[tuple[float, str, tuple[str, ...]], ...] = field(default_factory=tuple)


class LiveScreen:
    """The terminal view; drawn a few times a second, so that the clock goes on between the turns."""

    def __init__(self, console: Console, story: str) -> None:
        self._console, self._story = console, story
        self._lock = Lock()
        self._answers = Answers()
        self._lines: deque[Line] = deque(maxlen=KEPT_LINES)
        self._waiting: deque[int] = deque(maxlen=60)
        self._picture = Picture()
        self._clock: Clock | None = None
        self._start, self._minutes, self._policy, self._has_shadow = 0.0, 60, "", False

    def workload(self, description: str) -> None:
        """Print it above everything."""
        self._console.print(description, style="dim", highlight=False)

    def check(self, what: str, detail: str) -> None:
        """Print a check mark."""
        self._console.print(Text.assemble(("✓ ", "green"), what, "  ", (detail, "dim")), overflow="fold")

    @contextmanager
    def living(self, clock: Clock, start: float, minutes: int, policy: str, shadow: str | None) -> Iterator[None]:
        """Draw while the block runs; the last picture stays."""
        self._clock, self._start, self._minutes = clock, start, minutes
        self._policy, self._has_shadow = policy.partition(":")[0], shadow is not None
        with Live(
            get_renderable=lambda: self, console=self._console, refresh_per_second=REFRESHES_PER_S, transient=False
        ):
            yield

    def beat(self, struck: Struck) -> None:
        """Show the fault."""
        with self._lock:
            self._answers.struck(struck)
            self._picture = self._with_faults(self._picture)

    def show(self, moment: Moment) -> None:
        """Draw the fleet as the turn saw it."""
        with self._lock:
            self._answers.watch(moment.fleet, moment.report)
            for line in log_lines(moment):
                self._add(line)
            picture = Picture(moment, self._picture.mode, self._picture.shadow, self._picture.finished)
            for decision in moment.report.decisions:
                picture.mode, picture.shadow = decision.mode, self._shadow(moment, decision)
            for snapshot in moment.report.snapshots:
                if snapshot.queue is not None:
                    self._waiting.append(snapshot.queue.waiting)
                    queue = snapshot.queue
                    picture.finished = max(picture.finished, queue.submitted - queue.waiting - queue.running)
            picture.waiting, picture.lines = tuple(self._waiting), tuple(self._lines)
            if not moment.report.snapshots and self._picture.moment is not None:
                # A turn that saw nothing leaves the fleet as it was seen last.
                seen = self._picture.moment.report.snapshots
                picture.moment = replace(moment, report=replace(moment.report, snapshots=seen))
            self._picture = self._with_faults(picture)

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Say what is being waited for."""
        with self._console.status("simulating the same jobs on other fleets"):
            yield

    def _with_faults(self, picture: Picture) -> Picture:
        faults = tuple(
            (answered.struck.at, answered.struck.beat.title, answered.words) for answered in self._answers.told()
        )
        return replace(picture, faults=faults)

    def _add(self, line: Line) -> None:
        last = self._lines[-1] if self._lines else None
        if last is not None and line.key and last.key == line.key:
            self._lines[-1] = Line(line.at, line.text, line.style, line.key, last.times + 1)
        else:
            self._lines.append(line)

    def _shadow(self, moment: Moment, decision: Decision) -> str:
        if not self._has_shadow or decision.shadow is None:
            return ""
        requested = next((s.requested for s in moment.report.snapshots if s.fleet == decision.fleet), None)
        if requested is None:
            return decision.shadow.policy.partition(":")[0]
        moves = spelled_moves(moment.fleet, requested, decision.shadow.desired)
        return f"{decision.shadow.policy.partition(':')[0]} would {f'want {moves}' if moves else 'change nothing'}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw what there is now."""
        yield Panel(self._body(console, options), title=f"trimtab dry run, --fault {self._story}", title_align="left")

    def _body(self, console: Console, options: ConsoleOptions) -> RenderableType:
        picture, width = self._picture, options.max_width - 4
        now = self._clock.now() if self._clock is not None else self._start
        parts: list[RenderableType] = [self._header(now, picture, width), _one_line(self._deciding(picture))]
        if picture.moment is None:
            return Group(*parts, "", Text("the first minute is being measured", style="dim"))
        snapshot = next(iter(picture.moment.report.snapshots), None)
        if snapshot is not None:
            parts += ["", fleet_table(picture.moment.fleet, snapshot, wanted(picture.moment), width)]
        parts += ["", *self._jobs_and_money(picture, snapshot, width)]
        if picture.faults:
            parts += ["", *fault_lines(picture.faults, width)]
        room = console.height - LINES_AROUND - len(picture.faults) - (1 if picture.faults else 0)
        lines = picture.lines[-max(FEWEST_LOG_LINES, room) :]
        if lines:
            parts += ["", *(_drawn(line) for line in lines)]
        return Group(*parts)

    def _header(self, now: float, picture: Picture, width: int) -> RenderableType:
        minute = min(float(self._minutes), max(0.0, (now - self._start) / 60.0))
        badge = Text.assemble(
            (" DRY RUN, fake AWS ", "bold white on blue"),
            " ",
            _mode_badge(picture.mode),
            f"  {clock_text(max(now, self._start))} UTC  minute {minute:2.0f} of {self._minutes} ",
        )
        grid = Table.grid(expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        bar = ProgressBar(total=self._minutes, completed=minute, complete_style="cyan", finished_style="cyan")
        grid.add_row(badge, bar)
        return grid

    def _deciding(self, picture: Picture) -> Text:
        text = Text.assemble(("policy ", "dim"), self._policy)
        if picture.shadow:
            text.append_text(Text.assemble(("   shadow ", "dim"), picture.shadow))
        return text

    def _jobs_and_money(self, picture: Picture, snapshot: Snapshot | None, width: int) -> list[RenderableType]:
        assert picture.moment is not None
        queue = snapshot.queue if snapshot is not None else None
        if queue is None:
            counts = Text("no reading of the queue", style="bold yellow")
        else:
            style = "bold yellow" if queue.waiting else ""
            counts = Text.assemble(
                (f"{queue.waiting:3d} waiting", style), f"  {queue.running:3d} running  {picture.finished:3d} done  "
            )
        counts.append(sparkline(picture.waiting, max(0, width - len(counts) - 8)), style="cyan")
        cost = Text(f"${picture.moment.rent:6.3f} so far")
        if snapshot is not None:
            cost.append(f"   ${rate_per_hour(picture.moment.fleet, snapshot):.3f} per hour now")
            if snapshot.absent:
                cost.append(f"   holding: no {', '.join(snapshot.absent)}", style="bold yellow")
        return [_one_line(Text("jobs    ", style="dim") + counts), _one_line(Text("rent    ", style="dim") + cost)]


def wanted(moment: Moment) -> dict[str, int]:
    """Return the sizes per group key that this turn asks for."""
    return {intent.group: intent.target for decision in moment.report.decisions for intent in decision.intents}


def fleet_table(fleet: Fleet, snapshot: Snapshot, asked: Mapping[str, int], width: int) -> Table:
    """Return the fleet by type: a bar of its VMs, and how many are requested, warm, booting and draining."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    wide = width >= WIDE
    legend = Text.assemble(("█", "green"), " warm ", ("▒", "yellow"), " booting ", ("░", "red"), " draining")
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
        table.add_row(group.vm_type.name, vm_bar(seen, 2 if wide else 1), requested, *numbers, cpu)
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


def fault_lines(faults: Sequence[tuple[float, str, tuple[str, ...]]], width: int) -> list[RenderableType]:
    """Return one line per fault: when it struck, what it was, and how it was met."""
    lines = []
    for at, title, words in faults:
        met = Text(" → ".join(words), style="green") if words else Text("…", style="yellow")
        lines.append(_one_line(Text.assemble((f"{clock_text(at)[:5]} ⚡ {title}", "magenta"), " → ", met)))
    return list(lines)


def log_lines(moment: Moment) -> list[Line]:
    """Return the log's lines of one turn: what a fault's own line shows, and routine, is left out."""
    fleet, report = moment.fleet, moment.report
    events, decisions, outcomes = notable(report)
    lines = event_lines(events)
    requested = {snapshot.fleet: snapshot.requested for snapshot in report.snapshots}
    lines += [_decision_line(fleet, decision, requested.get(decision.fleet)) for decision in decisions]
    for outcome in outcomes:
        if outcome.reason in ROUTINE_OUTCOMES and outcome.achieved >= outcome.asked:
            continue
        style = "green" if outcome.achieved >= outcome.asked else "red"
        done = f"{outcome.intent_id} {outcome.status}, {outcome.achieved} of {outcome.asked}"
        lines.append(Line(outcome.at, f"{done}: {outcome.detail}", style))
    if report.failure:
        lines.append(Line(report.at, f"nothing was executed: {report.failure}", "bold red", "failure"))
    return lines


def event_lines(events: Sequence[Event]) -> list[Line]:
    """Return one line for each kind of event: the first of them, and how many more there were."""
    over = {event.subject for event in events if event.reason is Reason.DRAINED}
    by_reason: dict[Reason, list[Event]] = {}
    for event in events:
        if event.reason in ON_THE_FAULTS_LINE or (event.reason is Reason.DRAINING and event.subject in over):
            continue
        by_reason.setdefault(event.reason, []).append(event)
    return [
        Line(same[0].at, same[0].detail + (f" (and {len(same) - 1} more)" if same[1:] else ""), "yellow")
        for same in by_reason.values()
    ]


def _decision_line(fleet: Fleet, decision: Decision, requested: tuple[int, ...] | None) -> Line:
    """A change with its reason, or what was held and by which rail; a minute held like the last one only counts."""
    rails = [e for e in decision.effects if e.verdict is not Verdict.PASSED and e.detail]
    name = decision.decision_id
    if requested is None:
        return Line(decision.at, f"{name} {decision.sentence}", "yellow", f"held {decision.reason}")
    moves = spelled_moves(fleet, requested, decision.desired)
    if moves:
        why = rails[-1].detail if rails else decision.proposal.detail or str(decision.reason)
        return Line(decision.at, f"{name} {moves}  ({why})", "bold")
    wanted = spelled_moves(fleet, requested, decision.proposal.desired)
    why = rails[-1].detail.rpartition(" held at ")[2].partition(": ")[2] or rails[-1].detail if rails else ""
    held = f"{name} held: {wanted or 'no change'}  ({why or decision.reason})"
    return Line(decision.at, held, "dim", f"held {decision.reason}")


def spelled_moves(fleet: Fleet, before: Sequence[int], after: Sequence[int]) -> str:
    """Return the changes per type, such as `m5a.large 2→3`; "" when there is none."""
    moves = (
        f"{group.vm_type.name} {was}→{becomes}"
        for group, was, becomes in zip(fleet.groups, before, after, strict=True)
        if was != becomes
    )
    return ", ".join(moves)


def rate_per_hour(fleet: Fleet, snapshot: Snapshot) -> float:
    """Return what the VMs that there are cost in an hour, those that boot or drain included."""
    present = (group.warm + group.booting + group.draining for group in snapshot.groups)
    return sum(n * price for n, price in zip(present, fleet.prices_per_hour, strict=True))


def sparkline(values: Sequence[int], width: int) -> str:
    """Return the last `width` values as bars; the highest is the full height."""
    shown = values[-width:] if width else []
    most = max([*shown, 1])
    return "".join(SPARKS[round(value / most * (len(SPARKS) - 1))] for value in shown)


def _drawn(line: Line) -> Text:
    times = f" ×{line.times}" if line.times > 1 else ""
    return _one_line(Text.assemble((f"{clock_text(line.at)[:5]}{times} ", "dim"), (line.text, line.style)))


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _mode_badge(mode: Mode | None) -> tuple[str, str]:
    if mode is None:
        return "", ""
    return (" ACT ", "bold white on red") if mode is Mode.ACT else (" OBSERVE ", "bold black on yellow")
