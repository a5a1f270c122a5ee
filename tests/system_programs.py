"""The system programs and rights that some tests need, and how to detect each; the Debian packages of a program.

Standard library only: `.ci/run` asks it before anything is installed (`python3 -m tests.system_programs`).
"""

import ctypes
import ctypes.util
import functools
import glob
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SystemProgram:
    """A program that pip cannot install, the mark of the tests that need it, and how to get it."""

    mark: str
    name: str
    packages: tuple[str, ...]
    is_present: Callable[[], bool]

    @property
    def install_line(self) -> str:
        """The command that installs it on Debian and Ubuntu."""
        return f"apt-get install {' '.join(self.packages)}"


@dataclass(frozen=True, slots=True)
class SystemRight:
    """A right that the kernel or the container grants or not, and the mark of the tests that need it."""

    mark: str
    name: str
    is_granted: Callable[[], bool]

    @property
    def reason(self) -> str:
        """The reason of a skip where it is not granted."""
        return f"no right to {self.name} here"


def _on_path(*commands: str) -> bool:
    # Also where only root looks for programs.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    return any(shutil.which(command, path=path) for command in commands)


_CLONE_NEWNS = 0x00020000


@functools.cache
def _may_mount() -> bool:
    """Mount a tmpfs in a child process with a mount namespace, so that nothing of it is left."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, 0x44000, None) == 0:
                status = int(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"size=64k") != 0)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@functools.cache
def _may_attach_loop() -> bool:
    return _may_mount() and os.path.exists("/dev/loop-control") and os.access("/dev/loop-control", os.R_OK | os.W_OK)


def cgroup2_mount() -> str | None:
    """Return where cgroup2 is mounted writably, None where it is not."""
    try:
        with open("/proc/mounts") as mounts:
            found = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
    except OSError:
        return None
    return next((mount for mount in found if os.access(f"{mount}/cgroup.procs", os.W_OK)), None)


SYSTEM_RIGHTS = (
    SystemRight("needs_mount", "mount file systems", _may_mount),
    SystemRight("needs_loop", "attach loop devices", _may_attach_loop),
    SystemRight(
        "needs_cgroup", "create control groups (cgroup2)", lambda: _may_mount() and cgroup2_mount() is not None
    ),
)


SYSTEM_PROGRAMS = (
    SystemProgram("needs_chromium", "Chromium", ("chromium",), lambda: _on_path("chromium", "chromium-browser")),
    SystemProgram(
        "needs_postgresql",
        "a PostgreSQL server",
        ("postgresql",),
        # Debian keeps the server's own commands out of PATH.
        lambda: _on_path("initdb") or bool(glob.glob("/usr/lib/postgresql/*/bin/initdb")),
    ),
    SystemProgram("needs_systemd", "systemd-analyze", ("systemd",), lambda: _on_path("systemd-analyze")),
    SystemProgram(
        "needs_collectd",
        "collectd",
        ("collectd-core",),
        lambda: _on_path("collectd"),
    ),
    SystemProgram("needs_prometheus", "Prometheus", ("prometheus",), lambda: _on_path("prometheus")),
    SystemProgram(
        "needs_alertmanager",
        "Alertmanager",
        ("prometheus-alertmanager",),
        lambda: _on_path("prometheus-alertmanager", "alertmanager"),
    ),
    SystemProgram("needs_pgbouncer", "pgbouncer", ("pgbouncer",), lambda: _on_path("pgbouncer")),
    SystemProgram(
        "needs_debootstrap",
        "debootstrap, with unshare and nsenter",
        ("debootstrap", "util-linux"),
        lambda: _on_path("debootstrap") and _on_path("unshare") and _on_path("nsenter"),
    ),
    SystemProgram("needs_mkfs", "mkfs.ext4", ("e2fsprogs",), lambda: _on_path("mkfs.ext4")),
    SystemProgram("needs_npm", "npm", ("npm",), lambda: _on_path("npm")),
    SystemProgram(
        "needs_dpkg_source", "dpkg-source", ("dpkg-dev", "xz-utils"), lambda: _on_path("dpkg-source") and _on_path("xz")
    ),
    SystemProgram("needs_libcairo", "libcairo", ("libcairo2",), lambda: ctypes.util.find_library("cairo") is not None),
)


def programs_in_use(tests: Path) -> list[SystemProgram]:
    """Return the programs whose mark some test file below `tests` carries, in the order of the table."""
    sources = [path.read_text("utf-8") for path in tests.rglob("test_*.py")]
    used = {mark for source in sources for mark in re.findall(r"\bmark\.(needs_\w+)", source)}
    return [program for program in SYSTEM_PROGRAMS if program.mark in used]


if __name__ == "__main__":
    missing = [program for program in programs_in_use(Path(__file__).parent) if not program.is_present()]
    print(" ".join(package for program in missing for package in program.packages))
