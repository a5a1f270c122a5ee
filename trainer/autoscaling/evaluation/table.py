"""The results table: one row per policy and case, in a CSV that grows row by row and can be taken up again (§11)."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

from domain.errors import BadInput
from trainer.autoscaling.evaluation.episode import Run
from trainer.autoscaling.evaluation.suite import Case

ROOT = Path(__file__).parents[3]
SOURCES = (
    "domain",
    "simulator/autoscaling",
    "trainer/autoscaling/policies",
    "trainer/autoscaling/baselines",
    "trainer/autoscaling/episodes.py",
    "trainer/autoscaling/evaluation/episode.py",
)
"""Folders and files whose code decides what a run comes to; a change in any of them makes stored rows stale."""


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one case; what the measures mean stands in `simulator.autoscaling.reference.Measures`.

    policy: as given. policy_key: tells policies apart by content (a model file by its SHA-256). case_key:
    `suite.Case.key`. code: `code_version`. Tuples are per VM type. idle_*: see `episode.Idle`; worst is None without an
    idle stretch.
    """

    policy: str
    policy_key: str
    case: str
    family: str
    world: str
    seed: int
    case_key: str
    code: str
    truncated: bool
    steps: int
    run_time_s: float
    cost: float
    rent: float
    penalty: float
    jobs_finished: int
    jobs_submitted: int
    mean_wait_s: float
    p95_wait_s: float
    allocated_ratio: float
    utilisation: float
    idle_core_h: float
    executed_core_s: float
    added: tuple[int, ...]
    removed: tuple[int, ...]
    refused: tuple[int, ...]
    interruptions: int
    lost_core_s: float
    peak_cores: int
    bursts: int
    first_core_s: float
    reclaimed: int
    idle_stretches: int
    idle_worst_min: float | None
    idle_released: bool

    @property
    def group(self) -> str:
        """T1 to T6."""
        return self.family.split()[0]

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes a row the same as another: policy, case, code."""
        return self.policy_key, self.case_key, self.code

    @classmethod
    def of(cls, policy: str, policy_key: str, case: Case, run: Run) -> Self:
        """Build the row of a run."""
        measures = {field.name: getattr(run.measures, field.name) for field in fields(run.measures)}
        return cls(
            policy=policy,
            policy_key=policy_key,
            case=case.name,
            family=case.family,
            world=case.world,
            seed=case.seed,
            case_key=case.key,
            code=code_version(),
            truncated=run.truncated,
            idle_stretches=run.idle.stretches,
            idle_worst_min=run.idle.worst_min,
            idle_released=run.idle.released,
            **measures,
        )


_COLUMNS: Mapping[str, str] = {field.name: str(field.type) for field in fields(Row)}


@cache
def code_version() -> str:
    """Return a digest (12 hex digits) over the source text that decides results."""
    digest = hashlib.sha256()
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")) or [ROOT / source]:
            if path.is_file():
                digest.update(path.relative_to(ROOT).as_posix().encode("utf-8"))
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Results:
    """A results file: rows are appended as they come and survive an interruption.

    A last line that was cut is dropped. Raises BadInput for a file that is no results table.
    """

    def __init__(self, path: Path | None, *, resume: bool = True) -> None:
        """Open the file (None: keep rows in memory only); without `resume` a file with rows is refused."""
        self._path = path
        self._rows: dict[tuple[str, str, str], Row] = {}
        if path is None:
            return
        if path.exists():
            for row in read_rows(path):
                self._rows[row.identity] = row
            if self._rows and not resume:
                raise BadInput("--results", str(path), "it holds rows already: give --resume, or another file")
            _cut_after_last_line(path)
        if not path.exists() or path.stat().st_size == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_line(_COLUMNS), encoding="utf-8", newline="\n")

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def get(self, policy_key: str, case: Case) -> Row | None:
        """Return the stored row of this policy on this case by the present code, None when it has not been run."""
        return self._rows.get((policy_key, case.key, code_version()))

    def add(self, row: Row) -> None:
        """Store a row; it is on the disk when this returns."""
        self._rows[row.identity] = row
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(_row_text(row))
            stream.flush()
            os.fsync(stream.fileno())


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a table as CSV; numbers read back bit for bit."""
    path.write_text(_line(_COLUMNS) + "".join(map(_row_text, rows)), encoding="utf-8", newline="\n")


def read_rows(path: Path) -> list[Row]:
    """Read a CSV table; BadInput names line and column of what cannot be read. A cut last line is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise BadInput("results file", str(path), f"{fault}: give a table of this program") from None
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    if not lines:
        return []
    if lines[0] != list(_COLUMNS):
        raise BadInput("results file", str(path), "its columns are not those of this version: give another file")
    return [_row(path, number, line) for number, line in enumerate(lines[1:], start=2)]


def _row(path: Path, number: int, line: Sequence[str]) -> Row:
    if len(line) != len(_COLUMNS):
        raise BadInput(f"{path.name} line {number}", len(line), f"give {len(_COLUMNS)} fields")
    values: dict[str, Any] = {}
    for (name, kind), text in zip(_COLUMNS.items(), line, strict=True):
        try:
            values[name] = _READERS[kind](text)
        except (ValueError, KeyError):
            raise BadInput(f"{path.name} line {number}: {name}", text, f"give a value of kind {kind}") from None
    return Row(**values)


_READERS: Mapping[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "float | None": lambda text: float(text) if text else None,
    "bool": {"true": True, "false": False}.__getitem__,
    "tuple[int, ...]": lambda text: tuple(int(part) for part in text.split()),
}


def _row_text(row: Row) -> str:
    return _line(_text(getattr(row, name)) for name in _COLUMNS)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(list(cells))
    return text.getvalue()


def _cut_after_last_line(path: Path) -> None:
    """Drop what stands after the last line feed, so that the next row begins on a line of its own."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as stream:
            stream.truncate(whole)
