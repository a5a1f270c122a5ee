"""The system programs some tests need: how to tell that one is there, and the Debian packages that bring it.

Standard library only: `.ci/run` asks it before anything is installed (`python3 -m tests.system_programs`).
"""

import ctypes.util
import glob
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


def _on_path(*commands: str) -> bool:
    return any(shutil.which(command) for command in commands)


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
        # Where only root looks for programs.
        lambda: _on_path("collectd") or shutil.which("collectd", path="/usr/sbin") is not None,
    ),
    SystemProgram("needs_prometheus", "Prometheus", ("prometheus",), lambda: _on_path("prometheus")),
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
