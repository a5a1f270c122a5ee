"""The interpreters of this machine that Trimtab supports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

NAMES = ("python3.11", "python3.12", "python3.13", "python3.14")
VERSION = "import sys; print(*sys.version_info[:2])"


def _named() -> Iterator[Path]:
    """Yield each file with the name of a supported Python: on the PATH, then below pyenv's versions."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for folder in (*map(Path, os.get_exec_path()), *sorted(pyenv.glob("*/bin"))):
        yield from (folder / name for name in NAMES if os.access(folder / name, os.X_OK))


def _version(python: Path) -> tuple[int, ...] | None:
    """Return the version; None for a file that does not run, such as pyenv's shim of a version that is not active."""
    done = subprocess.run([python, "-c", VERSION], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def oldest_and_newest() -> list[Path]:
    """Return the oldest and the newest of them, or the only one; empty where there is none."""
    found: dict[tuple[int, ...], Path] = {}
    for python in _named():
        version = _version(python)
        if version is not None:
            found.setdefault(version, python)
    ends = sorted(found)
    return [found[version] for version in dict.fromkeys((*ends[:1], *ends[-1:]))]
