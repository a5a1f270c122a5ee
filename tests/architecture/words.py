"""Counts old dialect in the words of the product, file by file, against committed counts that may only fall.

Two columns per file: texts for users (Markdown outside code, strings of modules, templates), and docstrings with
comments. A count above the committed one fails; `python -m tests.architecture.words --write` lowers counts and never
raises one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.architecture.product import MODULES, ROOT

COUNTS = Path(__file__).with_name("words.txt")
PATTERNS = {
    "told, tells": r"told|tells?|foretells?|foretold",
    "said, says": r"said|says?",
    "whoever, whatever, nobody, somebody, anybody, everybody": r"who(?:so)?ever|whatever|(?:no|some|any|every)body",
    "who, whom": r"who|whom",
    "stands": r"stands?|stood",
    "so many": r"so many",
    "of its own": r"of (?:its|their) own",
    "is none, is no": r"(?<!there )(?:is|are|was|were) (?:none|no)(?! longer\b| more\b| less\b)",
    "beside": r"besides?",
    "a clause with what in place of a noun": r"what(?!-if\b| to\b)(?![^.;:?!]*\?)",
    "those that, the one that, all that": r"those (?:that|which)|the ones? that|all (?:that|there is)",
    "goes on": r"go(?:es)? on(?! to\b)|went on",
    "comes in with, along, to": r"com(?:es?|ing) (?:in with|along|to\b)|came (?:in with|along|to\b)",
    "let go": r"lets? (?:it )?go",
    "give or take": r"give or take",
    "hearing, straying, settling, happenings": r"hearing|straying|settling|happenings?",
    "physics, garbage": r"physics|garbage",
    "as it stands, as it was": r"as (?:it|they) (?:was|were)",
    "anew": r"anew",
}
"""A name for people, and the pattern of whole words, small or capital."""
_ANY = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in PATTERNS.values()), re.IGNORECASE)
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`|\]\([^)\s]*\)", re.MULTILINE | re.DOTALL)
_TAGS = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}|<[^>]*>", re.DOTALL)


def found(text: str) -> list[str]:
    """The old dialect in a text, in order; a clause over two lines counts too."""
    return _ANY.findall(re.sub(r"\s+", " ", text))


def of_page(text: str) -> str:
    """A page in Markdown without its code and the targets of its links."""
    return _CODE.sub(" ", text)


def of_module(source: str) -> tuple[list[str], list[str]]:
    """The strings of a module, a value in an f-string as `0`, and its docstrings and comments."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr | ast.Constant | ast.JoinedStr)]
    described = {
        id(node.value) for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    within = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    texts: list[str] = []
    notes: list[str] = []
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within:
            (notes if id(node) in described else texts).append(node.value)
    comments = (
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )
    return texts, [*notes, "\n".join(comments).replace("#", " ")]


def counted() -> Iterator[tuple[str, int, int]]:
    """Each file with old dialect: its path from the root, the count in texts for users, that in docstrings."""
    pages = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])
    for page in pages:
        if page.name != "CHANGELOG.md":
            yield page.relative_to(ROOT).as_posix(), len(found(of_page(page.read_text("utf-8")))), 0
    for template in sorted((ROOT / "agent").rglob("*.html")):
        yield template.relative_to(ROOT).as_posix(), len(found(_TAGS.sub(" ", template.read_text("utf-8")))), 0
    for module in MODULES:
        texts, notes = of_module((ROOT / module).read_text("utf-8"))
        yield module.as_posix(), sum(len(found(text)) for text in texts), sum(len(found(note)) for note in notes)


def committed() -> dict[str, tuple[int, int]]:
    """The committed counts by path."""
    rows = (line.split() for line in COUNTS.read_text("utf-8").splitlines())
    return {path: (int(texts), int(notes)) for texts, notes, path in rows}


def risen(now: Mapping[str, tuple[int, int]], before: Mapping[str, tuple[int, int]]) -> list[str]:
    """A line for each file whose count lies above the committed one."""
    return [
        f"{path}: {texts} in texts and {notes} in docstrings, committed {before.get(path, (0, 0))}"
        for path, (texts, notes) in now.items()
        if texts > before.get(path, (0, 0))[0] or notes > before.get(path, (0, 0))[1]
    ]


def main(arguments: list[str]) -> int:
    """Compare, and with --write lower the committed counts; with paths list what they hold."""
    now = {path: (texts, notes) for path, texts, notes in counted() if texts or notes}
    if "--write" in arguments:
        before = committed() if COUNTS.exists() else now
        rows = (
            (path, [min(pair) for pair in zip(now[path], before.get(path, (0, 0)), strict=True)])
            for path in sorted(now)
        )
        COUNTS.write_text(
            "".join(f"{texts:4} {notes:4} {path}\n" for path, (texts, notes) in rows if texts or notes), "utf-8"
        )
    for path in (argument for argument in arguments if not argument.startswith("-")):
        text = (ROOT / path).read_text("utf-8")
        texts, notes = of_module(text) if path.endswith(".py") else ([of_page(_TAGS.sub(" ", text))], [])
        for one in texts if "--texts" in arguments else [*texts, *notes]:
            line = re.sub(r"\s+", " ", one)
            for match in _ANY.finditer(line):
                print(f"{path}: ...{line[max(0, match.start() - 60) : match.end() + 40]}...")
    before = committed()
    above = risen(now, before)
    total, was = (tuple(sum(column) for column in zip(*counts.values(), strict=True)) for counts in (now, before))
    print(f"old dialect: {total[0]} in texts, {total[1]} in docstrings; committed {was[0]} and {was[1]}")
    if above:
        print("\n".join(above), "see tests/architecture/words.py for the patterns", sep="\n")
    elif total != was:
        print("lower the committed counts: python -m tests.architecture.words --write")
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
