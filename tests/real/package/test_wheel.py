"""The wheel, installed into an empty environment, shows its commands and lives a quarter of an hour."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.product import PACKAGES, ROOT
from tests.real.cache import CACHE, distribution, run, scratch
from tests.real.package.pythons import oldest_and_newest

UV = "uv==0.13.9"
FILES = ("pyproject.toml", "README.md", "LICENSE")
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(("TRIMTAB_", "PYTHON", "VIRTUAL_"))}
MINUTES = 15
"""Of fewer than these, the plan without faults has not seen a VM drained."""
DRY_RUN = f"dry-run --headless --json --section fleet --fault none --minutes {MINUTES} --speed 600".split()
PYTHONS = oldest_and_newest()


def uv(*words: str | Path) -> str:
    environ = ENVIRON | {"UV_CACHE_DIR": str(CACHE / "uv-cache")}
    return run(distribution(UV) / "bin" / "uv", *words, "--quiet", env=environ)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools puts what an earlier build has left beside the sources into the next wheel."""
    place = tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, place)
    uv("build", "--wheel", "--out-dir", place / "dist", place)
    (found,) = (place / "dist").glob("*.whl")
    return found


@pytest.fixture(params=PYTHONS, ids=[python.name for python in PYTHONS])
def trimtab(request: pytest.FixtureRequest, wheel: Path) -> Iterator[Path]:
    """The command `trimtab` of an environment that one Python made, with the wheel and what it needs, as locked."""
    distribution(UV)
    # Where uv's cache is, so that it links what it installs.
    with scratch(f"environment-{request.param.name}") as place:
        run(request.param, "-m", "venv", "--without-pip", place, env=ENVIRON)
        python = Path(place, "bin", "python")
        wanted = f"trimtab[dry-run] @ {wheel.as_uri()}"
        uv("pip", "install", "--python", python, "--constraint", ROOT / "constraints.txt", wanted)
        yield python.with_name("trimtab")


@pytest.mark.skipif(not PYTHONS, reason="no file named python3.11 or newer on the PATH or below ~/.pyenv")
def test_an_installed_wheel_lives_a_dry_run(trimtab: Path, tmp_path: Path) -> None:
    def ran(program: Path, *words: str | Path) -> str:
        return run(program, *words, cwd=tmp_path, env=ENVIRON)

    origin = ran(trimtab.with_name("python"), "-c", "import agent; print(agent.__file__)")
    assert Path(origin).is_relative_to(trimtab.parents[1])
    verbs = ran(trimtab, "--help")
    assert [verb for verb in ("run", "dry-run", "explain", "replay") if f" {verb} " not in verbs] == []

    lines = ran(trimtab, *DRY_RUN, "--keep", tmp_path / "kept").splitlines()
    summary = json.loads(lines[-1])
    assert (summary["kind"], summary["missing"], summary["decisions"]) == ("summary", [], MINUTES)
    assert summary["lived"]["finished"] > 0
    assert (tmp_path / "kept" / "ledger.db").is_file()
