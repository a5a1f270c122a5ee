"""For job workers: report busy cores to the VM's collector, and learn when to accept no more jobs.

Standard library only, so that a worker can import it or take a copy of this file. Who writes no Python does the same
with two files; docs/operate/worker-hook.md shows it for a shell.

    with WorkerHook() as hook:
        while not hook.draining:
            job = next_job()
            with hook.job(cores=1):
                work_on(job)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType

RUN_DIRECTORY = "/run/trimtab"
REPORT_EVERY_S = 5.0


class WorkerHook:
    """One worker's line to the collector on its VM; safe to use from several threads.

    name: unique among the VM's workers. As a context manager it reports in its own thread, at each change and every few
    seconds, and withdraws at the end. Without a collector on the VM it does nothing: no worker fails because of it.
    """

    def __init__(self, run_directory: str = RUN_DIRECTORY, name: str | None = None) -> None:
        place = Path(run_directory)
        self._drain = place / "drain"
        self._file = place / "workers" / (name or f"worker-{os.getpid()}")
        self._lock = Lock()
        self._jobs: dict[int, tuple[float, float]] = {}
        self._next = 0
        self._ended = Event()
        self._thread: Thread | None = None

    @property
    def draining(self) -> bool:
        """Whether the VM is to be taken away: finish what runs, take no new job."""
        return self._drain.exists()

    @contextmanager
    def job(self, cores: float = 1.0) -> Iterator[None]:
        """Count a job as running on so many cores while the block lasts."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._jobs[number] = (cores, time.monotonic())
        self.report()
        try:
            yield
        finally:
            with self._lock:
                del self._jobs[number]
            self.report()

    def report(self) -> bool:
        """Write how many cores are busy and how much work would be lost now; return whether it could be written."""
        with self._lock:
            now = time.monotonic()
            busy = sum(cores for cores, _ in self._jobs.values())
            work = sum(cores * (now - since) for cores, since in self._jobs.values())
            return write_report(self._file, busy, work)

    def __enter__(self) -> WorkerHook:
        self._ended.clear()
        self._thread = Thread(target=self._run, name="trimtab-worker-hook", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(OSError):
            self._file.unlink()

    def _run(self) -> None:
        self.report()
        while not self._ended.wait(REPORT_EVERY_S):
            self.report()


def write_report(file: Path, busy_cores: float, work_core_seconds: float) -> bool:
    """Put a worker's report in its place in one step, so that no reader sees half of it; return whether that worked."""
    text = f"busy_cores {busy_cores!r}\nwork_core_seconds {work_core_seconds!r}\n"
    # Which process it is, and in which namespace its number holds: which tells a dead worker from a silent one.
    with suppress(OSError):
        text += f"process {os.getpid()} {os.readlink('/proc/self/ns/pid')}\n"
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        new.write_text(text, "utf-8")
        new.chmod(0o644)
        new.replace(file)
    except OSError:
        return False
    return True
