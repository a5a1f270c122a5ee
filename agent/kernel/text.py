"""Text for people that parts, verbs and the page share: times, durations, money, counts and aligned columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from domain.units import HOURS_PER_DAY

NOT_KNOWN = "?"
_SECONDS = re.compile(r"(?<![\w.-])(\d+) s\b")
_CLAUSE_ENDS = re.compile(r"[,;] ")


def duration_text(seconds: float) -> str:
    """Return a duration as people write it: 90 s, 15 min, 2 h 5 min, 3 d 4 h."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(min(seconds, 1e12) / 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, HOURS_PER_DAY)
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {name}" for count, name in parts[first : first + 2] if count)


def in_minutes(text: str) -> str:
    """Return a sentence with its longer durations in minutes and hours: `for another 3540 s` becomes `... 59 min`."""
    return _SECONDS.sub(lambda found: duration_text(float(found[1])), text)


def fitting(text: str, room: int) -> str:
    """Return a sentence in at most `room` characters: without its last clauses, else cut behind a word.

    Clauses end at a comma or a semicolon. A bracket at the end, which holds the reason, stays closed.
    """
    if len(text) <= room:
        return text
    opening = text.find("  (") if text.endswith(")") else -1
    closing = ")" if opening >= 0 else ""
    ends = [found.start() for found in _CLAUSE_ENDS.finditer(text) if opening < found.start() <= room - len(closing)]
    if ends:
        return text[: ends[-1]] + closing
    head = text[: max(0, room - 1)]
    return (head.rsplit(" ", 1)[0] if " " in head.strip() else head) + "…"


def time_text(at: float) -> str:
    """Return a time as 2026-03-01 12:04:05 UTC."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "a time beyond the calendar"


def columns(rows: Sequence[Sequence[object]], indent: str = "  ") -> list[str]:
    """Return the rows as lines whose columns are aligned: numbers to the right, text to the left, the last one free."""
    if not rows:
        return []
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    right = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(widths))]
    lines = []
    for row in cells:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        lines.append((indent + "  ".join(aligned)).rstrip())
    return lines


def clock_time(at: float | None, now: float | None = None) -> str:
    """Return a time of day in UTC as 12:04:35, with the date in front when `now` is given and lies on another day."""
    if at is None:
        return "never"
    moment = _moment(at)
    if moment is None:
        return "beyond the calendar"
    today = _moment(now) if now is not None else moment
    is_today = today is not None and moment.date() == today.date()
    return moment.strftime("%H:%M:%S" if is_today else "%d %b %H:%M:%S")


def clock_minute(at: float, now: float) -> str:
    """Return a time of day in UTC as 12:04, with the date in front when `now` lies on another day."""
    return clock_time(at, now)[:-3]


def machine_time(at: float) -> str:
    """Return a time as the datetime attribute of HTML wants it, "" when it has none."""
    moment = _moment(at)
    return "" if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def money(dollars: float | None) -> str:
    """Return dollars with cents, from a thousand on without."""
    if dollars is None:
        return NOT_KNOWN
    return f"${dollars:,.0f}" if dollars >= 1000.0 else f"${dollars:.2f}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return '1 VM' or '1,200 VMs'."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def words(name: str) -> str:
    """Return a name in code as words: step_limit becomes `step limit`."""
    return name.replace("_", " ")


def arrows(text: str) -> str:
    """Return text with `->` set as an arrow."""
    return text.replace("->", "→")


def _moment(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError, ValueError):
        return None
