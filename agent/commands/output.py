"""Text for people: aligned columns, with words for good and bad coloured where the output is a terminal."""

from __future__ import annotations

from collections.abc import Sequence

GOOD = r"\b(?P<good>done|act|raised|closed)\b"
BAD = r"\b(?P<bad>vetoed|failed|unknown|partial|open|stale)\b"
HELD = r"\b(?P<held>shrunk|moved|skipped|in progress|paused|pinned|observe|lowered)\b"
STYLES = {"word.good": "green", "word.bad": "bold red", "word.held": "yellow"}


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


def show(lines: Sequence[str]) -> None:
    """Print lines; a pipe gets them as they are."""
    from rich.console import Console
    from rich.highlighter import RegexHighlighter
    from rich.theme import Theme

    class Words(RegexHighlighter):
        base_style = "word."
        highlights = [GOOD, BAD, HELD]  # noqa: RUF012 (rich reads this name from the class)

    console = Console(theme=Theme(STYLES), highlighter=Words(), soft_wrap=True)
    for line in lines:
        console.print(line, markup=False, emoji=False)
