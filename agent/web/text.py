"""How the page writes times, durations, money and counts."""

from __future__ import annotations

from datetime import UTC, datetime

NOT_KNOWN = "?"


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


def full_time(at: float) -> str:
    """Return a time as 2026-03-01 12:04:05 UTC."""
    moment = _moment(at)
    return "a time beyond the calendar" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def machine_time(at: float) -> str:
    """Return a time as the datetime attribute of HTML wants it, "" when it has none."""
    moment = _moment(at)
    return "" if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 90 s, 15 min, 2 h 5 min, 3 d 4 h."""
    seconds = max(0.0, seconds)
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    minutes = round(min(seconds, 1e12) / 60.0)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {name}" for count, name in parts[first : first + 2] if count)


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
