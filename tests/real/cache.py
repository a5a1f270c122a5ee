"""What real tests download or build once: directories of `.real/`, complete or absent, with the version in the name."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".real"
LONGEST_S = 900.0


class NotAvailable(Exception):
    """Something cannot be downloaded or built here; names the reason."""


def cached(name: str, make: Callable[[Path], object]) -> Path:
    """Return the directory `.real/<name>`, filled by `make` where it is missing.

    It gets its name when `make` has returned, so an interrupted one leaves nothing under the name. Processes that ask
    at the same time wait for one another. Raises what `make` raises.
    """
    place = CACHE / name
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            for interrupted in CACHE.glob(f".new-{name}-*"):
                shutil.rmtree(interrupted)
            new = Path(tempfile.mkdtemp(prefix=f".new-{name}-", dir=CACHE))
            try:
                make(new)
                new.chmod(0o755)
                new.rename(place)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    return place


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield an empty directory `.real/<name>`, removed at the end, or by the next call where that was interrupted.

    Processes that ask at the same time wait for one another.
    """
    place = CACHE / name
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return what a command prints; NotAvailable with its last lines where it fails."""
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        raise NotAvailable(f"there is no {words[0]}")
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if done.returncode:
        raise NotAvailable(f"`{' '.join(words)}` failed: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def distribution(requirement: str) -> Path:
    """Return a directory with one distribution for this Python, without what it needs: `name==version`."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target")
    tag = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return cached(f"{requirement}-{tag}", lambda place: run(*pip, place, requirement))
