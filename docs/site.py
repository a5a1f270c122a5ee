"""The site's table of contents, and its links to files outside docs/: hooks of mkdocs."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
OUTSIDE = "repository"
"""Folder of the site that holds what pages link to outside docs/: settings for AWS, units, the README."""
_NAMED_BLOCK = re.compile(r"^(```\w+) \w+$", re.MULTILINE)
"""Code blocks that tests find by a second word, which Python's Markdown does not know."""
_LINK = re.compile(r"(?<!`)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the table of contents from docs/README.md: its sections, and the pages that each of them lists."""
    contents: list[Any] = [{"Documentation": "README.md"}]
    for section in re.split(r"^## ", (ROOT / DOCS / "README.md").read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        listed = [name for name, _ in _LINK.findall(text) if name.endswith(".md")]
        pages = [_of_site(_of_repository(f"{DOCS}/README.md", name)) for name in listed]
        contents.append({heading.strip(): list(dict.fromkeys(pages))})
    config.nav = contents
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/, and what that links to; a link to nothing stays, and is reported."""
    waiting = [f"{DOCS}/{one.src_uri}" for one in files if one.src_uri.endswith(".md")]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        if not page.endswith(".md"):
            continue
        for name, _ in _LINK.findall((ROOT / page).read_text("utf-8")):
            path = _of_repository(page, name)
            if path in seen or path.startswith(f"{DOCS}/") or not (ROOT / path).is_file():
                continue
            seen.add(path)
            waiting.append(path)
            files.append(File.generated(config, _of_site(path), abs_src_path=os.fspath(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page to where their files are in the site; a folder's link leads to its README."""
    own = page.file.src_uri
    source = own.removeprefix(f"{OUTSIDE}/") if own.startswith(f"{OUTSIDE}/") else f"{DOCS}/{own}"

    def moved(found: re.Match[str]) -> str:
        target = _of_site(_of_repository(source, found[1]))
        return f"]({posixpath.relpath(target, posixpath.dirname(own) or '.')}{found[2] or ''})"

    return _NAMED_BLOCK.sub(r"\1", _LINK.sub(moved, markdown))


def _of_repository(page: str, link: str) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def _of_site(path: str) -> str:
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"{OUTSIDE}/{path}"
