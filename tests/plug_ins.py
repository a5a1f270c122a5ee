"""Packages that bring plug-ins, as far as the tests need them: their entry points in a directory of their own."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.autoscaling.policies.registry import policy_from_name
from agent.kernel import parts

EXAMPLE = Path(__file__).parent / "plugin_example"


def package(site: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write what pip leaves behind of an installed package: its name and its entry points."""
    # With a - in its name it would pass for a package of the name before that.
    about = site / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in groups.items()]
    (about / "entry_points.txt").write_text("\n".join(lines))


@contextmanager
def on_path(*sites: Path) -> Iterator[None]:
    """Let Python find packages and modules in these directories, and forget afterwards what was found there."""

    def forget() -> None:
        parts.kinds.cache_clear()
        policy_from_name.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*map(str, sites), *sys.path])
        forget()
        yield
    forget()


@contextmanager
def example_installed(site: Path) -> Iterator[None]:
    """Bring the example's entry points, as its pyproject.toml names them, without an installation."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    package(site, project["name"], project["entry-points"])
    with on_path(site, EXAMPLE):
        yield
