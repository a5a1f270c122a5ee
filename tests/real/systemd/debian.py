"""What a machine of these tests is made of: a Debian root made by debootstrap, and the wheels of an installation.

Both are made once and kept in `.real/` at the root of the repository. A machine only reads them.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

from packaging.markers import Marker

from tests.architecture.product import ROOT
from tests.real.cache import cached, run

SUITE = "bookworm"
PYTHON = (3, 11)
"""The Python of the suite, with any patch release."""
PACKAGES = ("systemd", "procps", "python3", "python3-venv")
"""procps has /bin/kill, which the agent's unit calls at a reload."""
ENVIRON = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
LEFT_OUT = ("usr/share/doc", "usr/share/info", "usr/share/man", "var/cache/apt", "var/lib/apt/lists")
RECIPE = "1"
"""Raise it when a root is made in another way."""


def debian_root() -> Path:
    """Return the root of a small Debian with systemd, made first where it is missing. Raises NotAvailable."""
    key = hashlib.sha256(" ".join((RECIPE, SUITE, *PACKAGES, *LEFT_OUT)).encode()).hexdigest()[:12]
    return cached(f"{SUITE}-{key}", _debootstrap)


def wheels() -> Path:
    """Return a folder with every file of deploy/requirements.txt for the root's Python. Raises NotAvailable."""
    requirements = ROOT / "deploy" / "requirements.txt"
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    return cached(f"wheels-{SUITE}-{key}", lambda folder: _download(requirements, folder))


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
    run(
        *private,
        "bash",
        "-euo",
        "pipefail",
        "-c",
        script,
        str(folder),
        ",".join(PACKAGES),
        SUITE,
        *LEFT_OUT,
        env=ENVIRON,
    )


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
    run(*pip, *only, "--require-hashes", "--requirement", str(wanted), "--dest", str(folder))
