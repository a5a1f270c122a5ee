"""What a person sees of a dry run: a live view in a terminal, lines where there is none, JSON where a program reads."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent.tick import TickReport
from domain.decisions import Decision, Reason, Verdict
from domain.fleet import Fleet
from domain.snapshot import Snapshot

SPARKS = "▁▂▃▄▅▆▇█"
KEPT_LINES = 7


class Screen(Protocol):
    """Shows a dry run as it goes."""

    def check(self, what: str, detail: str) -> None:
        """One part is up."""
        ...

    def begin(self) -> None:
        """The simulated hour begins."""
        ...

    def beat(self, title: str, now: float) -> None:
        """A fault struck."""
        ...

    def show(self, fleet: Fleet, report: TickReport, dollars: float, minute: float, finished: int) -> None:
        """One tick is over."""
        ...

    def end(self) -> None:
        """The simulated hour is over."""
        ...


def changing(decision: Decision, snapshot: Snapshot | None) -> bool:
    """Return whether the decision moved the fleet or a rail kept it from moving."""
    moved = snapshot is not None and decision.desired != snapshot.requested
    return moved or any(effect.verdict is not Verdict.PASSED for effect in decision.effects)


def clock_text(at: float) -> str:
    """Return hours, minutes and seconds (UTC) of a time in epoch seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def lines_of(report: TickReport) -> list[tuple[str, str]]:
    """Return (style, line) for what is worth a line in this tick: events, changes and what became of them."""
    lines = [
        ("yellow", f"{clock_text(e.at)} {e.fleet} {e.reason}: {e.detail}")
        for e in report.events
        if e.reason is not Reason.PROTECTED
    ]
    snapshots = {snapshot.fleet: snapshot for snapshot in report.snapshots}
    for decision in report.decisions:
        if changing(decision, snapshots.get(decision.fleet)):
            style = "bold" if decision.intents else "dim"
            lines.append((style, f"{clock_text(decision.at)} {decision.decision_id} {decision.sentence}"))
    for outcome in report.outcomes:
        if outcome.status.final or outcome.failure is not None:
            style = "green" if outcome.achieved >= outcome.asked else "red"
            done = f"{outcome.achieved} of {outcome.asked}"
            lines.append(
                (style, f"{clock_text(outcome.at)} {outcome.intent_id} {outcome.status}, {done}: {outcome.detail}")
            )
    if report.failure:
        lines.append(("bold red", f"{clock_text(report.at)} nothing was executed: {report.failure}"))
    return lines


class LiveScreen:
    """The terminal view: fleet by type, queue, cost, and the last things that happened."""

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._lines: deque[tuple[str, str]] = deque(maxlen=KEPT_LINES)
        self._waiting: deque[int] = deque(maxlen=60)
        self._beat = ""

    def check(self, what: str, detail: str) -> None:
        """Print a check mark."""
        self._console.print(f"[green]✓[/green] {what} [dim]{detail}[/dim]", highlight=False)

    def begin(self) -> None:
        """Start drawing."""
        self._live.start()

    def beat(self, title: str, now: float) -> None:
        """Announce the fault."""
        self._beat = title
        self._lines.append(("magenta", f"{clock_text(now)} ⚡ {title}"))

    def show(self, fleet: Fleet, report: TickReport, dollars: float, minute: float, finished: int) -> None:
        """Draw the fleet as the tick saw it."""
        self._lines.extend(lines_of(report))
        for snapshot in report.snapshots:
            self._live.update(self._draw(fleet, snapshot, report, dollars, minute, finished))

    def end(self) -> None:
        """Stop drawing."""
        self._live.stop()

    def _draw(
        self, fleet: Fleet, snapshot: Snapshot, report: TickReport, dollars: float, minute: float, finished: int
    ) -> RenderableType:
        if snapshot.queue is not None:
            self._waiting.append(snapshot.queue.waiting)
        table = Table(box=None, pad_edge=False, expand=False)
        for heading in ("group", "VMs", "requested", "warm", "CPU"):
            table.add_column(heading, justify="left" if heading in ("group", "VMs") else "right")
        for group, seen in zip(fleet.groups, snapshot.groups, strict=True):
            bar = Text("█" * seen.warm, style="green")
            bar.append("▒" * seen.booting, style="yellow")
            bar.append("░" * seen.draining, style="red")
            bar.append("·" * max(0, group.maximum - seen.warm - seen.booting), style="dim")
            cpu = "–" if seen.cpu_mean is None else f"{seen.cpu_mean:.0%}"
            table.add_row(f"{group.key} {group.vm_type.name}", bar, str(seen.requested), str(seen.warm), cpu)
        rate = sum(n * p for n, p in zip(snapshot.requested, fleet.prices_per_hour, strict=True))
        queue = snapshot.queue
        waiting = "no reading" if queue is None else f"{queue.waiting} waiting, {queue.running} running"
        state = Text.assemble(
            (" DRY RUN – fake AWS ", "bold white on blue"),
            f"  minute {minute:4.1f}   {clock_text(report.at)} UTC   ${rate:.3f}/h, ${dollars:.3f} so far   ",
            (f"holding: {', '.join(snapshot.absent)} absent" if snapshot.absent else "", "bold yellow"),
        )
        jobs = Text.assemble("queue ", (_sparkline(self._waiting), "cyan"), f"  {waiting}, {finished} done")
        legend = Text("█ warm  ▒ booting  ░ draining", style="dim")
        lines = [Text(line, style=style, overflow="ellipsis", no_wrap=True) for style, line in self._lines]
        fault = Text(f"last fault: {self._beat}" if self._beat else "", style="magenta")
        return Panel(Group(state, "", table, legend, jobs, fault, "", *lines), title=self._title, expand=True)


def _sparkline(values: Sequence[int]) -> str:
    most = max([*values, 1])
    return "".join(SPARKS[round(value / most * (len(SPARKS) - 1))] for value in values)


class LineScreen:
    """One line for each thing that happened, for logs and pipes."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out

    def _say(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()

    def check(self, what: str, detail: str) -> None:
        """Write the part and its address."""
        self._say(f"up: {what} {detail}")

    def begin(self) -> None:
        """Say nothing."""

    def beat(self, title: str, now: float) -> None:
        """Write the fault."""
        self._say(f"{clock_text(now)} FAULT {title}")

    def show(self, fleet: Fleet, report: TickReport, dollars: float, minute: float, finished: int) -> None:
        """Write what is worth a line."""
        for _, line in lines_of(report):
            self._say(line)

    def end(self) -> None:
        """Say nothing."""


class JsonScreen:
    """One JSON object a line: checks, faults; the ledger's own entries are written by the run when it is over."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out

    def say(self, **entry: Any) -> None:
        """Write one object."""
        self._out.write(json.dumps(entry, sort_keys=True) + "\n")
        self._out.flush()

    def check(self, what: str, detail: str) -> None:
        """Write the part and its address."""
        self.say(kind="up", what=what, detail=detail)

    def begin(self) -> None:
        """Say nothing."""

    def beat(self, title: str, now: float) -> None:
        """Write the fault."""
        self.say(kind="fault", at=now, detail=title)

    def show(self, fleet: Fleet, report: TickReport, dollars: float, minute: float, finished: int) -> None:
        """Write nothing: what happened is in the ledger."""

    def end(self) -> None:
        """Say nothing."""
