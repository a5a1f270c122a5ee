"""Installs a real Graphite into `.venv-graphite`, once: by `make graphite`, or by the first test.

Its pins clash with ours (Django 3), and they need Python 3.11 or older.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PLACE = ROOT / ".venv-graphite"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
NEWEST_PYTHON = (3, 11)
LONGEST_S = 600.0


class NotInstallable(Exception):
    """Graphite cannot be installed here; names the reason and the remedy."""


def installed() -> Path:
    """Return the `bin` directory of Graphite's environment, made first where it is not up to date.

    Processes that ask at the same time wait for one another. Raises NotInstallable.
    """
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    stamp = PLACE / ".ready"
    PLACE.mkdir(exist_ok=True)
    with (PLACE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.is_file() or stamp.read_text() != wanted:
            _install()
            stamp.write_text(wanted)
    return PLACE / "bin"


def _install() -> None:
    _run(_python(), "-m", "venv", str(PLACE))
    pip = (str(PLACE / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--requirement", str(REQUIREMENTS))


def _python() -> str:
    """Return an interpreter that Graphite's Django still runs on."""
    if sys.version_info[:2] <= NEWEST_PYTHON:
        return sys.executable
    found = shutil.which("python3.11")
    if found is None:
        raise NotInstallable("Graphite's web application needs Python 3.11: put python3.11 on the PATH")
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-3:]
        raise NotInstallable(f"`{' '.join(command)}` failed: {' / '.join(lines)}")


if __name__ == "__main__":
    try:
        print(f"Graphite is installed in {installed().parent}")
    except NotInstallable as reason:
        sys.exit(f"error: {reason}")
