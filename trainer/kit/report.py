"""Reports of the trainer: one HTML page that needs nothing beside it, of sections with tables and drawings."""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.kit.drawing import GRID, INK, PAPER, SOFT, inlined, sheet, themed

_SHEET = f"""
{sheet()}
:root {{ color-scheme: light dark; --ink: {themed(INK)}; --soft: {themed(SOFT)}; --line: {themed(GRID)};
  --paper: {themed(PAPER)}; --ground: #f6f8f9; --shade: #f2f6f8; --good: #1d7a55; --bad: #b3261e; --blue: #1f6f94;
  --good-ground: #e3f4ec; --bad-ground: #fbe7e5; --none-ground: #eef1f3; }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ --ground: #12181e; --shade: #222d36; --good: #6fd3a5; --bad: #ff9d94; --blue: #7cc4e2;
    --good-ground: #17392c; --bad-ground: #43211f; --none-ground: #2a353f; }}
}}
"""
_RULES = """
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, "Segoe UI", sans-serif; color: var(--ink); background: var(--ground); margin: 0; }
main { max-width: 76rem; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 0 0 .2rem; }
p { margin: .3rem 0 .8rem; max-width: 62rem; }
.soft { color: var(--soft); }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
section { padding: 1.2rem 1.4rem; margin: 1.1rem 0; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .8rem 0 0; }
a { color: var(--blue); text-decoration: none; }
a:hover { text-decoration: underline; }
.scroll { overflow-x: auto; overflow-wrap: normal; margin: .6rem 0; }
pre { font-size: .84rem; }
table { border-collapse: collapse; width: 100%; font-size: .84rem; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; }
caption span { display: inline-block; position: sticky; left: 0; max-width: min(100%, calc(100vw - 4.2rem)); }
th, td { padding: .34rem .45rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; line-height: 1.25; }
th:first-child, td:first-child { text-align: left; }
td { font-variant-numeric: tabular-nums; }
td:first-child { min-width: 8rem; max-width: 22rem; white-space: normal; overflow-wrap: anywhere; }
tbody tr:last-child td { border-bottom: 0; }
tr.reference td { background: var(--shade); }
small { color: var(--soft); font-size: .78rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
.chip { display: inline-block; padding: 0 .5rem; border-radius: 99px; font-size: .82rem; }
.chip.good { background: var(--good-ground); } .chip.bad { background: var(--bad-ground); }
.chip.none { background: var(--none-ground); color: var(--soft); }
.dot { display: inline-block; width: .65rem; height: .65rem; border-radius: 50%; margin-right: .45rem; }
svg { display: block; width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .4rem 0; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; }
@media (max-width: 40rem) {
  main { padding: 1.2rem .7rem 3rem; } section { padding: .9rem .8rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
}
@media print { body { background: white; } section { break-inside: avoid; border: 0; padding: .4rem 0; } }
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing with what it shows."""

    caption: str
    svg: str

    def html(self, key: str) -> str:
        """Return it for a page in which no other drawing has this key."""
        caption = f'<p class="soft" id="{key}-caption">{escape(self.caption)}</p>'
        return caption + _scrolling(inlined(self.svg, key), "picture")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page; content: HTML."""

    key: str
    title: str
    content: str

    @property
    def link(self) -> str:
        """The title without what follows a dash."""
        return self.title.partition(" — ")[0]


def document(title: str, sections: Sequence[Section], facts: Mapping[str, str] | None = None) -> str:
    """Return a page: title, facts by name, links to the sections, and the sections."""
    links = " ".join(f'<a href="#{escape(one.key)}">{escape(one.link)}</a>' for one in sections)
    named = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in (facts or {}).items())
    parts = (
        f'<section id="{escape(one.key)}"><h2>{escape(one.title)}</h2>\n{one.content}</section>' for one in sections
    )
    about = f"<dl>{named}</dl>" if named else ""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_SHEET}{_RULES}</style>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{about}\n<nav>{links}</nav>\n{body}\n</main>\n</html>\n"
    )


def table(
    head: Iterable[str], rows: Iterable[Sequence[str]], caption: str = "", *, marked: Collection[int] = ()
) -> str:
    """Return a table; head: text, with `<br>` for a break. rows: cells as HTML. marked: rows of the reference."""
    titles = (escape(cell).replace("&lt;br&gt;", "<br>") for cell in head)
    # A heading without words is none: it would be read out as one.
    top = "".join(f'<th scope="col">{title}</th>' if title else "<td></td>" for title in titles)
    body = "\n".join(
        f"<tr{' class=reference' if place in marked else ''}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for place, cells in enumerate(rows)
    )
    named = f"<caption><span>{escape(caption)}</span></caption>" if caption else ""
    whole = f"<table>{named}<thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table>"
    return _scrolling(whole, "table")


@dataclass(frozen=True, slots=True)
class Check:
    """A figure against its limit; kept: None with too few cases, or others, for a verdict."""

    key: str
    asked: str
    found: str
    kept: bool | None

    def as_data(self, verdict: str = "kept") -> dict[str, Any]:
        """Return it as JSON data; verdict: the name of `kept`."""
        return {"key": self.key, "asked": self.asked, "found": self.found, verdict: self.kept}


def checks_table(checks: Iterable[Check], caption: str) -> str:
    """Return checks as a table, misses first."""
    words = {True: "kept", False: "missed", None: "no verdict"}
    rows = [
        (escape(check.asked), escape(check.key), escape(check.found), chip(check.kept, words[check.kept]))
        for check in sorted(checks, key=lambda check: (check.kept is not False, check.kept is None))
    ]
    return table(("asked", "criterion", "found", "verdict"), rows, caption)


def lines(text: str) -> str:
    """Return lines of a file, as they stand in it."""
    return _scrolling(f"<pre>{escape(text)}</pre>", "lines of a file")


def _scrolling(content: str, name: str) -> str:
    """Return what may be wider than the window in a box that scrolls, by the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(name)}">{content}</div>'


def chip(kept: bool | None, text: str) -> str:
    """Return a word in green or red; grey for None."""
    kind = "none" if kept is None else "good" if kept else "bad"
    return f'<span class="chip {kind}">{escape(text)}</span>'


def escape(text: str) -> str:
    """Return text as HTML."""
    return html.escape(text)


def write_report(folder: Path, page: str, data: Any, plots: Mapping[str, Plot]) -> list[Path]:
    """Write the page, `summary.json` and an SVG file per plot into a folder; return the files in that order."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"report.html": page, "summary.json": data if isinstance(data, str) else json.dumps(data, indent=1) + "\n"}
    files |= {f"{name}.svg": plot.svg for name, plot in plots.items()}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in files]
