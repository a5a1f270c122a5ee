"""Reports of the trainer: one HTML page that needs nothing beside it, of sections with tables and drawings."""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.kit.drawing import prefixed

SHEET = """
:root { --ink: #22303c; --soft: #66737f; --line: #e3e8ec; --good: #1d7a55; --bad: #b3261e; --blue: #1f6f94; }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, "Segoe UI", sans-serif; color: var(--ink); background: #f6f8f9; margin: 0; }
main { max-width: 76rem; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 0 0 .2rem; }
p { margin: .3rem 0 .8rem; max-width: 62rem; }
.soft { color: var(--soft); }
section { background: white; border: 1px solid var(--line); border-radius: 10px; }
section { padding: 1.2rem 1.4rem; margin: 1.1rem 0; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .8rem 0 0; }
a { color: var(--blue); text-decoration: none; }
a:hover { text-decoration: underline; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .84rem; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; }
th, td { padding: .34rem .45rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; line-height: 1.25; }
th:first-child, td:first-child { text-align: left; }
td { font-variant-numeric: tabular-nums; }
td:first-child { max-width: 22rem; overflow: hidden; text-overflow: ellipsis; }
tr:last-child td { border-bottom: 0; }
tr.reference td { background: #f2f6f8; }
small { color: var(--soft); font-size: .8em; }
.good { color: var(--good); } .bad { color: var(--bad); }
.chip { display: inline-block; padding: 0 .5rem; border-radius: 99px; font-size: .82rem; }
.chip.good { background: #e3f4ec; } .chip.bad { background: #fbe7e5; }
.chip.none { background: #eef1f3; color: var(--soft); }
.dot { display: inline-block; width: .65rem; height: .65rem; border-radius: 50%; margin-right: .45rem; }
svg { display: block; width: 100%; height: auto; margin: .6rem 0 .2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .4rem 0; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; }
@media print { body { background: white; } section { break-inside: avoid; border: 0; padding: .4rem 0; } }
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing with what it shows."""

    caption: str
    svg: str

    def html(self, key: str) -> str:
        """Return it for a page in which no other drawing has this key."""
        return f'<p class="soft">{escape(self.caption)}</p>{prefixed(self.svg, key)}'


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
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in (facts or {}).items())
    parts = (
        f'<section id="{escape(one.key)}"><h2>{escape(one.title)}</h2>\n{one.content}</section>' for one in sections
    )
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{SHEET}</style>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n<dl>{pairs}</dl>\n<nav>{links}</nav>\n{body}\n</main>\n</html>\n"
    )


def table(
    head: Iterable[str], rows: Iterable[Sequence[str]], caption: str = "", *, marked: Collection[int] = ()
) -> str:
    """Return a table; head: text, with `<br>` for a break. rows: cells as HTML. marked: rows of the reference."""
    top = "".join(f"<th>{escape(cell).replace('&lt;br&gt;', '<br>')}</th>" for cell in head)
    body = "\n".join(
        f"<tr{' class=reference' if place in marked else ''}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for place, cells in enumerate(rows)
    )
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{named}<thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>'


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
