"""Starts the process that tunes the queue rule of each fleet by its record, once an hour and one at a time.

The process, `trimtab self-tune FLEET`, is the trainer's and limits itself. The agent loads nothing of it, and reads
its results in the models directory later. A call of `look` never waits for it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import structlog

from domain.clock import Clock
from domain.decisions import Event, Reason
from domain.subject import fleet_subject
from domain.units import DAY_S, HOUR_S

log = structlog.get_logger(__name__)

EVERY_S: Final = HOUR_S
LOOK_EVERY_S: Final = 10.0
PATIENCE_S: Final = 900.0
"""Wall time after which a process is ended: at the lowest priority it may wait for a processor."""
KILLED_WITHIN_S: Final = 5.0
ALARM_FROM: Final = 3
"""Failures in a row of one fleet that raise an event, and another one a day later."""
MOST_OUTPUT_BYTES: Final = 4096
COMMAND: Final = (sys.executable, "-c", "from agent.commands.main import app; app()", "self-tune")
NOT_INHERITED: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables of the service manager: a process that is not the agent must not answer for it."""


@dataclass(slots=True)
class _Process:
    fleet: str
    popen: subprocess.Popen[bytes]
    began: float
    output: IO[bytes]
    errors: IO[bytes]
    files: contextlib.ExitStack


class SelfTuning:
    """The tuning processes of one agent; `look` and `stop` are safe to call from two threads.

    fleets: those to be tuned now, by name; none while this agent may not act. clock: its wall time sets the hours, its
    monotonic time ends a process. models: the directory of models. command: the program before the name of the fleet.
    """

    def __init__(
        self,
        fleets: Callable[[], Sequence[str]],
        clock: Clock,
        environ: Mapping[str, str],
        models: Path,
        *,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._fleets, self._clock, self._models, self._command = fleets, clock, models, tuple(command)
        inherited = {name: text for name, text in environ.items() if name not in NOT_INHERITED}
        # No module is loaded from the working directory; one thread is enough for arithmetic on short arrays.
        self._environ = inherited | {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._starts: dict[str, tuple[float, int]] = {}
        self._failures: dict[str, tuple[int, str]] = {}
        self._raised: dict[str, float] = {}
        self._stopped = False

    def look(self) -> None:
        """Take the answer of a process that has ended, end one that takes too long, and start the next one due."""
        with self._lock:
            if self._stopped:
                return
            fleets = self._fleets()
            self._forget_others(fleets)
            if self._process is not None and not self._over(self._process):
                return
            self._process = None
            if (fleet := self._due(fleets)) is not None:
                self._start(fleet)

    def stop(self) -> None:
        """End the process under way, and start none any more."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                _end(self._process)
                self._process = None

    def _forget_others(self, fleets: Sequence[str]) -> None:
        """Forget fleets that are not to be tuned here any more, and end the process of such a one."""
        self._starts = {name: one for name, one in self._starts.items() if name in fleets}
        self._failures = {name: one for name, one in self._failures.items() if name in fleets}
        if self._process is not None and self._process.fleet not in fleets:
            _end(self._process)
            self._process = None

    def _due(self, fleets: Sequence[str]) -> str | None:
        """Return the fleet that has waited longest since its last start, of those whose hour has begun since then.

        A fleet that is new here, as after a start of the agent, waits for its next hour.
        """
        now, due = self._clock.now(), {}
        for name in fleets:
            hour = int((now - zlib.crc32(name.encode()) % int(EVERY_S)) // EVERY_S)
            at, known = self._starts.setdefault(name, (-math.inf, hour))
            if known != hour:
                due[name] = at, hour
        if not due:
            return None
        first = min(due, key=lambda name: due[name][0])
        self._starts[first] = self._clock.monotonic(), due[first][1]
        return first

    def _start(self, fleet: str) -> None:
        with contextlib.ExitStack() as files:
            try:
                output = files.enter_context(tempfile.TemporaryFile())
                errors = files.enter_context(tempfile.TemporaryFile())
                popen = subprocess.Popen(
                    [*self._command, fleet],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    env=self._environ,
                    start_new_session=True,
                    umask=_umask(self._models),
                )
            except OSError as error:
                self._failed(fleet, f"it cannot be started: {error}")
                return
            self._process = _Process(fleet, popen, self._clock.monotonic(), output, errors, files.pop_all())
        _first_out_of_memory(popen.pid)

    def _over(self, process: _Process) -> bool:
        """Return whether a process has ended, with its answer taken; one beyond its time is ended."""
        status = process.popen.poll()
        if status is None and self._clock.monotonic() - process.began < PATIENCE_S:
            return False
        if status is None:
            _end(process)
            self._failed(process.fleet, f"it was ended after {PATIENCE_S:g} s")
            return True
        with process.files:
            answer, said = _head(process.output), _tail(process.errors)
        if status == 0 and (found := _answer(answer)) is not None:
            self._failures.pop(process.fleet, None)
            self._raised.pop(process.fleet, None)
            log.info("self_tuning", fleet=process.fleet, **found)
        else:
            self._failed(process.fleet, f"{_end_of(status)}: {said or 'no answer'}")
        return True

    def _failed(self, fleet: str, why: str) -> None:
        count, before = self._failures.get(fleet, (0, ""))
        self._failures[fleet] = count + 1, why
        if why != before:
            log.warning("self_tuning_failed", fleet=fleet, detail=why)

    def problem(self) -> str:
        """Return which fleets cannot be tuned, and why; "" while all can."""
        failing = {fleet: why for fleet, (count, why) in sorted(self._failures.items()) if count >= ALARM_FROM}
        return "; ".join(f"{fleet}: {why}" for fleet, why in failing.items())

    def events(self, now: float) -> Iterator[Event]:
        """Yield an event for each fleet whose tuning has failed several times in a row, once a day."""
        for fleet, (count, why) in tuple(self._failures.items()):
            raised = self._raised.get(fleet)
            if count >= ALARM_FROM and (raised is None or not 0.0 <= now - raised < DAY_S):
                self._raised[fleet] = now
                detail = f"the queue rule could not be tuned {count} times in a row: {why}; the setting in use stays"
                yield Event(fleet_subject(fleet), now, Reason.SELF_TUNING_FAILED, detail)


def _umask(models: Path) -> int:
    """Return the umask of a process: where its group writes the models, as on a host that learns, it reads them too."""
    try:
        return 0o007 if models.stat().st_mode & stat.S_IWGRP else 0o077
    except OSError:
        return 0o077


def _first_out_of_memory(pid: int) -> None:
    """Let a process be the first one to end when memory runs out; where the system refuses that, it is one of all."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", "ascii")


def _end(process: _Process) -> None:
    """End a process with its own processes; one that the kernel holds is left to its end."""
    with process.files, contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.popen.pid, signal.SIGKILL)
        process.popen.wait(KILLED_WITHIN_S)


def _end_of(status: int) -> str:
    """Return how a process ended, by its status as `subprocess` has it: below 0 the signal that ended it."""
    if status >= 0:
        return f"exit status {status}"
    if -status in (signal.SIGKILL, signal.SIGXCPU):
        return "killed: memory or CPU limit"
    try:
        return signal.Signals(-status).name
    except ValueError:
        # Most real-time signals have no name.
        return f"signal {-status}"


def _head(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(MOST_OUTPUT_BYTES)


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MOST_OUTPUT_BYTES))
    lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def _answer(text: bytes) -> dict[str, Any] | None:
    """Return the answer of a process, its act and the reason; None for other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return (
        {name: str(found.get(name, ""))[:500] for name in ("did", "why", "outcome")}
        if isinstance(found, dict)
        else None
    )
