"""What real tests download or build, once: kept in .real/ under its name and version, and made under a lock."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


class NotAvailable(Exception):
    """Something cannot be downloaded or built here; names the reason."""


PLACE = Path(__file__).parents[2] / ".real"
LONGEST_S = 600.0


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return `.real/NAME`, a directory that `make` fills first where it is missing.

    It gets its name only when `make` has returned. Processes that ask at the same time wait for one another. The test
    that asks is skipped where `make` raises NotAvailable: a registry may be out of reach.
    """
    PLACE.mkdir(exist_ok=True)
    place = PLACE / name
    with (PLACE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=PLACE) as directory:
                work = Path(directory) / "made"
                work.mkdir()
                try:
                    make(work)
                except NotAvailable as reason:
                    pytest.skip(f"{name} cannot be made: {reason}")
                work.rename(place)
    return place


def run(*command: str | Path, cwd: Path | None = None, more: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output; NotAvailable where it fails."""
    environment = {**os.environ, **(more or {})}
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        raise NotAvailable(f"there is no {words[0]}")
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise NotAvailable(f"`{' '.join(words)}` failed: {' / '.join(lines)}")
    return done.stdout
