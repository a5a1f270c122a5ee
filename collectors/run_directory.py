"""The directory a VM's collector shares with its job workers: they write how busy they are, it writes when to drain.

    workers/NAME    one file per worker, lines of `busy_cores N`, `work_core_seconds S`, optionally `process PID NS`
    drain           exists while the VM is to be terminated; holds since when and why

Every user of the VM may write under workers/, so nothing read there is trusted: links are not followed, only plain
files are opened, sizes and numbers are bounded.
"""

from __future__ import annotations

import math
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from domain.errors import BadInput

MAX_WORKERS = 256
MAX_FILE_BYTES = 4096
MOST_CORES = 4096.0
MOST_CORE_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker's report: cores at work, core-seconds that would be lost now, and its process, if given."""

    busy_cores: float
    work_core_seconds: float
    process: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class VmWork:
    """A VM's workers together; both None when it is not known, because a worker is silent or none ever reported.

    silent: workers without a recent report, or with one that cannot be read.
    """

    busy_cores: float | None
    work_core_seconds: float | None
    silent: tuple[str, ...] = ()


NOTHING_KNOWN = VmWork(None, None)


class RunDirectory:
    """Reads the workers' files and keeps the drain file; `silence_s` after its last report a worker is silent."""

    def __init__(self, place: Path, silence_s: float = 60.0) -> None:
        self.place = place
        self._workers = place / "workers"
        self._drain = place / "drain"
        self._silence_s = silence_s
        self._namespace = _pid_namespace()

    def make(self) -> None:
        """Make the directory for the workers, open to every user of the VM as /tmp is; OSError when that fails."""
        self.place.mkdir(parents=True, exist_ok=True)
        self._workers.mkdir(exist_ok=True)
        if stat.S_IMODE(self._workers.stat().st_mode) != 0o1777:
            self._workers.chmod(0o1777)

    def work(self, now: float) -> VmWork:
        """Add up the workers' reports; `now` in epoch seconds, as the file system stamps files."""
        try:
            names = sorted(name for name in os.listdir(self._workers) if not name.startswith("."))
        except OSError:
            return NOTHING_KNOWN
        reports, silent = [], []
        for name in names[:MAX_WORKERS]:
            try:
                report, age_s = self._read(name, now)
            except FileNotFoundError:
                continue
            except (OSError, BadInput):
                silent.append(name)
                continue
            if self._has_ended(report):
                with suppress(OSError):
                    (self._workers / name).unlink()
            elif abs(age_s) > self._silence_s:
                silent.append(name)
            else:
                reports.append(report)
        silent += names[MAX_WORKERS:]
        if silent or not names:
            return VmWork(None, None, tuple(silent))
        return VmWork(sum(r.busy_cores for r in reports), sum(r.work_core_seconds for r in reports))

    def ask_to_drain(self, why: str | None, now: float) -> None:
        """Make the drain file with the reason and since when, or remove it (None); OSError when that fails."""
        if why is None:
            self._drain.unlink(missing_ok=True)
        elif not self._drain.exists():
            new = self.place / ".drain"
            new.write_text(f"{now:.0f} {why}\n", "utf-8")
            new.chmod(0o644)
            new.replace(self._drain)

    def _read(self, name: str, now: float) -> tuple[WorkerReport, float]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(self._workers / name, flags)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise BadInput(f"workers/{name}", "no plain file", "write a plain file there")
            content = os.read(handle, MAX_FILE_BYTES)
        finally:
            os.close(handle)
        return parse_report(name, content), now - about.st_mtime

    def _has_ended(self, report: WorkerReport) -> bool:
        """Return whether the worker's process is certainly gone; of a foreign namespace nothing is certain."""
        if report.process is None or report.process[1] != self._namespace:
            return False
        try:
            os.kill(report.process[0], 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


def parse_report(name: str, content: bytes) -> WorkerReport:
    """Return the report in a worker's file; BadInput unless it has both numbers, finite and in range."""
    fields = {
        parts[0]: parts[1:] for line in content.decode("utf-8", "replace").splitlines() if (parts := line.split())
    }
    busy = _number(name, fields, "busy_cores", MOST_CORES)
    work = _number(name, fields, "work_core_seconds", MOST_CORE_SECONDS)
    process = None
    match fields.get("process"):
        case [pid, namespace] if pid.isascii() and pid.isdigit() and 0 < int(pid[:10]) == int(pid[:11]) < 2**22:
            process = (int(pid), namespace)
    return WorkerReport(busy, work, process)


def _number(name: str, fields: dict[str, list[str]], field: str, limit: float) -> float:
    try:
        (text,) = fields[field]
        value = float(text)
    except (KeyError, ValueError):
        value = math.nan
    if not 0.0 <= value <= limit:
        raise BadInput(f"workers/{name}: {field}", fields.get(field), f"write a number from 0 to {limit:g}")
    return value


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
