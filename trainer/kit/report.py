"""What every report of the trainer is made of: one style sheet, in the page itself, and drawings with captions."""

from __future__ import annotations

from dataclasses import dataclass

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
