"""Progress of work: bars in a terminal, lines elsewhere; of a training run also its curve, log and TensorBoard.

Files in a run's directory: `curve.csv`, a row per update, `train.log`, the lines with their times, and `tensorboard/`.
A resumed run appends to them.
"""

from __future__ import annotations

import csv
import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.kernel.text import duration_text
from domain.errors import BadInput
from trainer.kit.files import replace_file

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

BAR, LINES, SILENT = "bar", "lines", "silent"
"""How a run shows its progress."""
CURVE_FILE, LOG_FILE, TENSORBOARD_FOLDER = "curve.csv", "train.log", "tensorboard"
LINE_EVERY_S = 15.0
"""Without a terminal, a line is written at the start of each phase, and then one per interval."""
FIRST_COLUMNS = ("update", "steps", "wall_s", "cpu_s", "best_cost")


def write_line(line: str) -> None:
    """Write a line to standard error at once."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def bars(quiet: bool) -> Iterator[RichProgress]:
    """Show bars on standard error, or lines off a terminal; each task has a description, a total and a count done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    if quiet or console.is_terminal:
        shown = RichProgress(*columns, *times, console=console, transient=True, disable=quiet)
    else:
        shown = progress_lines(write_line)
    with shown:
        yield shown


def progress_lines(write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> RichProgress:
    """Return a progress that writes lines: the first task, each that begins, and the present one per LINE_EVERY_S."""
    from rich.progress import Progress as RichProgress

    class ProgressLines(RichProgress):
        def __init__(self) -> None:
            super().__init__(disable=True, get_time=clock)
            self._begun: set[str] = set()
            self._written_s = float("-inf")

        def add_task(self, description: str, *args: Any, **fields: Any) -> TaskID:
            task = super().add_task(description, *args, **fields)
            # Tasks with a total are often added together and done one after the other.
            if not self._begun or self._tasks[task].total is None:
                self._look(task)
            return task

        def update(self, task_id: TaskID, **fields: Any) -> None:
            super().update(task_id, **fields)
            self._look(task_id)

        def advance(self, task_id: TaskID, advance: float = 1) -> None:
            super().advance(task_id, advance)
            self._look(task_id)

        def _look(self, task_id: TaskID) -> None:
            task, now_s = self._tasks[task_id], clock()
            if not task.description or (task.description in self._begun and now_s - self._written_s < LINE_EVERY_S):
                return
            self._begun.add(task.description)
            self._written_s = now_s
            if task.total is None:
                write(f"{task.description} ...")
                return
            left_s = task.time_remaining
            left = f", about {duration_text(left_s)} left" if left_s else ""
            write(f"{task.description}: {task.completed:,.0f} of {task.total:,.0f}{left}")

    return ProgressLines()


def announce(words: str, quiet: bool) -> None:
    """Write the next phase to standard error, before large packages are loaded."""
    if not quiet:
        write_line(f"{words} ...")


def counter(shown: RichProgress, name: str) -> Callable[[int, int], None]:
    """Add a bar, and return the function that moves it by what is done and what there is."""
    task = shown.add_task(name, total=None)
    return lambda done, of: shown.update(task, completed=done, total=of or None)


@contextmanager
def phases(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a bar whose description is the present phase of the work."""
    with bars(quiet) as shown:
        task = shown.add_task("", total=None)
        yield lambda phase: shown.update(task, description=phase)


@dataclass(frozen=True, slots=True)
class Progress:
    """A training run after one update.

    steps, total_steps: environment steps done and asked for. wall_s, cpu_s: seconds since the run began, over all its
    resumptions. figures: everything measured, by names such as `loss/policy` or `held_out/greedy`. best_cost: lowest
    mean held-out cost so far, dollars an episode, None before the first evaluation. note: something out of the
    ordinary, such as a restart after a collapse.
    """

    update: int
    steps: int
    total_steps: int
    wall_s: float
    cpu_s: float
    figures: Mapping[str, float] = field(default_factory=dict)
    best_cost: float | None = None
    note: str = ""

    @property
    def whole_steps(self) -> int:
        """Environment steps of the whole run: those asked for, or those done where the last update goes beyond."""
        return max(self.total_steps, self.steps, 1)


class Listener:
    """Called with every update of a run, and with the phases before the first one."""

    def __call__(self, progress: Progress) -> None:
        """Take in one update."""
        raise NotImplementedError

    def phase(self, words: str) -> None:
        """Take in the start of a phase, such as `compiling`."""

    def close(self) -> None:
        """Write what is not yet written."""


class Listeners:
    """Several listeners as one; a context that closes them."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def __call__(self, progress: Progress) -> None:
        """Call each."""
        for listener in self._listeners:
            listener(progress)

    def phase(self, words: str) -> None:
        """Call each."""
        for listener in self._listeners:
            listener.phase(words)

    def __enter__(self) -> Listeners:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()


class Curve(Listener):
    """The learning curve as `curve.csv`: figures by column, empty where an update did not measure one."""

    def __init__(self, directory: Path, resumed_at: int = 0) -> None:
        """Begin the file; rows of an earlier run up to update `resumed_at` are kept, later ones are dropped."""
        self._path = directory / CURVE_FILE
        self._rows: list[dict[str, str]] = []
        self._columns: list[str] = list(FIRST_COLUMNS)
        if resumed_at and self._path.exists():
            self._rows = [row for row in read_curve(self._path) if int(row["update"]) <= resumed_at]
            self._columns += [name for row in self._rows[:1] for name in row if name not in self._columns]
        self._write_all()

    def __call__(self, progress: Progress) -> None:
        """Add a row."""
        row = {name: _text(getattr(progress, name)) for name in FIRST_COLUMNS}
        row |= {name: _text(value) for name, value in progress.figures.items()}
        self._rows.append(row)
        fresh = [name for name in row if name not in self._columns]
        if fresh:
            self._columns += fresh
            self._write_all()
        else:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self._columns, restval="").writerow(row)

    def _write_all(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="")
        writer.writeheader()
        writer.writerows(self._rows)
        replace_file(self._path, text.getvalue())


def read_curve(path: Path) -> list[dict[str, str]]:
    """Return the rows of a `curve.csv` by column, as text; BadInput when it has no column `update`."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if any(not (row.get("update") or "").isdigit() for row in rows):
        raise BadInput(
            "curve", str(path), "it is not a learning curve, or it is damaged: remove it, or give a new --out"
        )
    return rows


def column(rows: Sequence[Mapping[str, str]], name: str) -> list[tuple[int, float]]:
    """Return (steps, value) of the rows of a curve that have a value for a figure."""
    return [(int(row["steps"]), float(row[name])) for row in rows if row.get(name)]


class TensorBoard(Listener):
    """The figures as TensorBoard scalars over environment steps."""

    def __init__(self, directory: Path, resumed_steps: int | None = None) -> None:
        """Open the event file; those of an earlier run are removed, unless this one resumes it."""
        from torch.utils.tensorboard import SummaryWriter

        folder = directory / TENSORBOARD_FOLDER
        if resumed_steps is None:
            shutil.rmtree(folder, ignore_errors=True)
        purge = None if resumed_steps is None else resumed_steps + 1
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge)

    def __call__(self, progress: Progress) -> None:
        """Write the figures of an update."""
        for name, value in progress.figures.items():
            self._writer.add_scalar(name, value, progress.steps)
        if progress.best_cost is not None:
            self._writer.add_scalar("held_out/best", progress.best_cost, progress.steps)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


def headline(progress: Progress, goals: Mapping[str, float], cost: str) -> str:
    """Return the line beside the bar: the newest and the best held-out cost, and which goals the best has passed.

    goals: cost per baseline, dollars an episode. cost: name of the figure with the held-out cost.
    """
    parts = []
    if (newest := progress.figures.get(cost)) is not None:
        parts.append(f"cost {newest:.2f}")
    if progress.best_cost is not None:
        parts.append(f"best {progress.best_cost:.2f}")
    for name, goal in sorted(goals.items(), key=lambda item: -item[1]):
        passed = progress.best_cost is not None and progress.best_cost < goal
        parts.append(f"{'✓' if passed else '>'} {name} {goal:.2f}")
    return "  ".join(parts)


class Bar(Listener):
    """A progress bar with steps per second and time left, and below it the cost against the baselines."""

    def __init__(self, title: str, goals: Mapping[str, float], cost: str) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.text import Text

        self._goals, self._cost = goals, cost
        self._first: tuple[int, float] | None = None
        self._shown = False
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task(title, total=None, rate="")
        self._headline = Text()
        self._live = Live(Group(self._bar, self._headline), console=Console(stderr=True), refresh_per_second=4)
        self._live.start()

    def phase(self, words: str) -> None:
        """Show it below the bar."""
        self._headline.plain = words

    def __call__(self, progress: Progress) -> None:
        """Move on; the newest cost stays until there is a newer one."""
        if self._first is None:
            self._first = (progress.steps, progress.wall_s)
        steps, seconds = progress.steps - self._first[0], progress.wall_s - self._first[1]
        rate = f"{steps / seconds:,.0f} steps/s" if seconds > 0 else ""
        if self._cost in progress.figures or not self._shown:
            self._shown = True
            self._headline.plain = headline(progress, self._goals, self._cost)
        if progress.note:
            self._live.console.print(progress.note)
        self._bar.update(self._task, completed=progress.steps, total=progress.whole_steps, rate=rate)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._live.stop()


class Lines(Listener):
    """A line per phase, evaluation and note, for the first update, and after LINE_EVERY_S; for logs and pipes."""

    def __init__(
        self,
        title: str,
        goals: Mapping[str, float],
        cost: str,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._goals, self._cost, self._write, self._clock = title, goals, cost, write, clock
        self._first: tuple[int, float] | None = None
        self._written_s = float("-inf")

    def phase(self, words: str) -> None:
        """Write it at once."""
        self._write(f"{self._title}: {words}")

    def __call__(self, progress: Progress) -> None:
        """Write a line when the update was evaluated, something happened, or the last line is old."""
        if progress.note:
            self._write(f"{self._title}: {progress.note}")
        now_s = self._clock()
        if self._first is None:
            self._first = (progress.steps, progress.wall_s)
        if not (self._cost in progress.figures or now_s - self._written_s >= LINE_EVERY_S):
            return
        self._written_s = now_s
        steps, seconds = progress.steps - self._first[0], progress.wall_s - self._first[1]
        whole = progress.whole_steps
        parts = [f"{progress.steps:,} of {whole:,} steps ({100 * progress.steps // whole} %)"]
        if steps > 0 and seconds > 0.0:
            left_s = (whole - progress.steps) * seconds / steps
            parts[0] += f", {steps / seconds:,.0f} steps/s"
            parts[0] += f", about {duration_text(left_s)} left" if whole > progress.steps else ""
        self._write(f"{self._title}: {'  '.join([*parts, headline(progress, self._goals, self._cost)]).rstrip()}")


def log_of(directory: Path, *, resumed: bool) -> Callable[[str], None]:
    """Return a function that appends a line with its time to a run's log; a new run empties the log."""
    path = directory / LOG_FILE
    if not resumed:
        path.write_text("", "utf-8")

    def write(line: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}\n")

    return write


def newest_line(directory: Path) -> str:
    """Return the newest whole line of a run's log without its time; empty before the first."""
    try:
        lines = (directory / LOG_FILE).read_text("utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    return next((line.partition(" ")[2].strip() for line in reversed(lines) if line.endswith("\n")), "")


class Watch:
    """A bar per run of other processes, read from their curves; a context whose `look` is called from time to time.

    runs: (name, directory, environment steps asked for) of each. goals: cost by baseline. cost: name of the figure
    with the held-out cost. Without `live` the newest line of a run's log is written when its best cost is a new one, at
    its start and every LINE_EVERY_S; with `quiet`, nothing.
    """

    def __init__(
        self,
        runs: Sequence[tuple[str, Path, int]],
        goals: Mapping[str, float],
        cost: str,
        *,
        live: bool,
        quiet: bool = False,
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._runs, self._goals, self._cost, self._live = runs, goals, cost, live
        self._quiet = quiet
        self._seen = [(0, 0)] * len(runs)
        self._best = [""] * len(runs)
        self._written: list[tuple[str, float]] = [("", float("-inf"))] * len(runs)
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f} %"))
        best = TextColumn("{task.fields[best]}")
        self._bars = RichProgress(*columns, best, TimeElapsedColumn(), console=self._console)
        self._tasks = [self._bars.add_task(name, total=steps, best="") for name, _, steps in runs]

    def __enter__(self) -> Watch:
        if self._live:
            if self._goals:
                nothing = Progress(0, 0, 0, 0.0, 0.0)
                self._console.print(f"goals: {headline(nothing, self._goals, self._cost)}", highlight=False)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.look()
        if self._live:
            self._bars.stop()

    def look(self) -> None:
        """Read what is new."""
        for place, (name, directory, steps) in enumerate(self._runs):
            row = self._newest(place, directory / CURVE_FILE)
            best = self._best[place]
            if row is not None:
                best = f"best {float(row['best_cost']):.2f}" if row.get("best_cost") else ""
                done = int(row["steps"])
                self._bars.update(self._tasks[place], completed=done, total=max(steps, done), best=best)
            if not self._live and not self._quiet:
                self._write(place, name, directory, due=best != self._best[place])
            self._best[place] = best

    def _write(self, place: int, name: str, directory: Path, *, due: bool) -> None:
        line, now_s = newest_line(directory), time.monotonic()
        before, written_s = self._written[place]
        if line != before and (due or now_s - written_s >= LINE_EVERY_S):
            self._written[place] = (line, now_s)
            shown = line if line.startswith(f"{name}:") else f"{name}: {line}"
            self._console.print(shown, highlight=False, soft_wrap=True)

    def _newest(self, place: int, path: Path) -> dict[str, Any] | None:
        try:
            state = path.stat()
        except FileNotFoundError:
            return None
        if (state.st_mtime_ns, state.st_size) == self._seen[place]:
            return None
        self._seen[place] = (state.st_mtime_ns, state.st_size)
        # A row that is just being written is cut; the next look finds it whole.
        rows = [row for row in read_curve(path) if all(value is not None for value in row.values())]
        return rows[-1] if rows else None


def _text(value: float | None) -> str:
    return "" if value is None else repr(value)
