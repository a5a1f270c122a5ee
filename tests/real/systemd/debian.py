"""What a machine of these tests is made of: a Debian root made by debootstrap, and the wheels of an installation.

Both are made once and kept in `.real/` at the root of the repository. A machine only reads them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

from packaging.markers import Marker

from tests.architecture.product import ROOT

CACHE = ROOT / ".real"
SUITE = "bookworm"
PYTHON = (3, 11)
"""The Python of the suite, with any patch release."""
PACKAGES = ("systemd", "procps", "python3", "python3-venv")
"""procps has /bin/kill, which the agent's unit calls at a reload."""
LEFT_OUT = ("usr/share/doc", "usr/share/info", "usr/share/man", "var/cache/apt", "var/lib/apt/lists")
RECIPE = "1"
"""Raise it when a root is made in another way."""
LONGEST_S = 900.0


class NotBuildable(Exception):
    """A part of a machine cannot be made here, for want of a mirror for example."""


def debian_root() -> Path:
    """Return the root of a small Debian with systemd, made first where it is missing. Raises NotBuildable."""
    key = hashlib.sha256(" ".join((RECIPE, SUITE, *PACKAGES, *LEFT_OUT)).encode()).hexdigest()[:12]
    return _cached(f"{SUITE}-{key}", _debootstrap)


def wheels() -> Path:
    """Return a folder with every file of deploy/requirements.txt for the root's Python. Raises NotBuildable."""
    requirements = ROOT / "deploy" / "requirements.txt"
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    return _cached(f"wheels-{SUITE}-{key}", lambda folder: _download(requirements, folder))


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of that name, made once: other processes wait, and one that is stopped leaves no such name."""
    place = CACHE / name
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            for stopped in CACHE.glob(f".new-{name}-*"):
                shutil.rmtree(stopped)
            new = Path(mkdtemp(prefix=f".new-{name}-", dir=CACHE))
            try:
                make(new)
                new.chmod(0o755)
                new.rename(place)
            except BaseException:
                shutil.rmtree(new)
                raise
    return place


def _debootstrap(folder: Path) -> None:
    # On a tmpfs dpkg waits for no disk. What debootstrap mounts ends with the mount namespace.
    script = """
        mount -t tmpfs -o mode=755 tmpfs /mnt
        debootstrap --variant=minbase --include="$1" "$2" /mnt
        shift 2
        cd /mnt
        rm -rf "$@"
        tar --create --one-file-system . | tar --extract --preserve-permissions --numeric-owner --directory "$0"
    """
    private = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child")
    _run(*private, "bash", "-euo", "pipefail", "-c", script, str(folder), ",".join(PACKAGES), SUITE, *LEFT_OUT)


def _download(requirements: Path, folder: Path) -> None:
    """Download files with their hashes, by markers of the root's Python. Wheels, but graphyte has none."""
    version = ".".join(map(str, PYTHON))
    surroundings = {"python_version": version, "python_full_version": f"{version}.2", "implementation_name": "cpython"}
    blocks = []
    for block in re.split(r"^(?=[a-z0-9])", requirements.read_text("utf-8"), flags=re.MULTILINE):
        condition = re.search(r" ; (.+) \\$", block, flags=re.MULTILINE)
        if condition is None:
            blocks.append(block)
        elif Marker(condition[1]).evaluate(surroundings):
            blocks.append(block.replace(f" ; {condition[1]}", ""))
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(blocks), "utf-8")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    only = ("--no-deps", "--python-version", version)
    _run(*pip, *only, "--require-hashes", "--requirement", str(wanted), "--dest", str(folder))


def _run(*command: str) -> None:
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LONGEST_S, check=False, env=environ, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise NotBuildable(f"`{' '.join(command)}` took longer than {LONGEST_S:g} s") from None
    if done.returncode:
        lines = [*done.stdout.strip().splitlines()[-3:], *done.stderr.strip().splitlines()[-3:]]
        raise NotBuildable(f"`{command[-1]}` of `{command[0]}` failed: {' / '.join(lines)}")
