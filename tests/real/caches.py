"""What a real test downloads or builds once: directories below `.real/`, complete or absent."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

CACHES = Path(__file__).parents[2] / ".real"
LONGEST_S = 240.0


def cached(name: str, make: Callable[[Path], object]) -> Path:
    """Return the directory `.real/<name>`, filled by `make` where it is missing.

    Processes that ask at the same time wait for one another, and an interrupted `make` leaves nothing under the name.
    The name says what is in it, with the version. Raises what `make` raises.
    """
    place = CACHES / name
    CACHES.mkdir(exist_ok=True)
    with (CACHES / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            unfinished = Path(tempfile.mkdtemp(dir=CACHES, prefix=f"{name}."))
            try:
                make(unfinished)
                unfinished.rename(place)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return place


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return what a command prints; AssertionError with its last lines where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_S, check=False, cwd=cwd, env=env)
    assert done.returncode == 0, f"`{' '.join(words)}` failed: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


def distribution(requirement: str) -> Path:
    """Return a directory with one distribution for this Python, without what it needs: `name==version`."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target")
    tag = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return cached(f"{requirement}-{tag}", lambda place: run(*pip, place, requirement))
