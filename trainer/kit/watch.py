"""A bar per training run, for runs in other processes: read from the curves that they write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from trainer.kit.progress import CURVE_FILE, Progress, headline, read_curve


class Watch:
    """Shows how far each run is; a context whose `look` is called from time to time.

    runs: (name, directory, environment steps asked for) of each. goals: cost by baseline. cost: name of the figure
    with the held-out cost. Without `live` a line is written per new best cost; with `quiet`, nothing.
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
        self._told = [""] * len(runs)
        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f} %"))
        self._bars = RichProgress(
            *columns, TextColumn("{task.fields[told]}"), TimeElapsedColumn(), console=self._console
        )
        self._tasks = [self._bars.add_task(name, total=steps, told="") for name, _, steps in runs]

    def __enter__(self) -> Watch:
        if self._live:
            if self._goals:
                self._console.print(f"goals: {headline(_NONE, self._goals, self._cost)}", highlight=False)
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.look()
        if self._live:
            self._bars.stop()

    def look(self) -> None:
        """Read what is new."""
        for place, (name, directory, steps) in enumerate(self._runs):
            row = self._newest(place, directory / CURVE_FILE)
            if row is None:
                continue
            best = f"best {float(row['best_cost']):.2f}" if row.get("best_cost") else ""
            self._bars.update(self._tasks[place], completed=int(row["steps"]), told=best)
            if best != self._told[place] and not self._live and not self._quiet:
                told = f"{name}: {int(row['steps']):,} of {steps:,} steps  {best}"
                self._console.print(told, highlight=False, soft_wrap=True)
            self._told[place] = best

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


_NONE = Progress(0, 0, 0, 0.0, 0.0)
