"""Reports the state of the service to systemd: the protocol of sd_notify(3), without a library."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping

import structlog

log = structlog.get_logger(__name__)

SOCKET, WATCHDOG_USEC, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
LONGEST_STATUS = 400
PINGS_PER_PERIOD = 3
"""systemd recommends two; with three, one may be late."""


class Notifier:
    """Sends the state to the supervisor named by the environment; without one, sending does nothing.

    watchdog_s: longest time between two watchdog messages, None when the supervisor expects none.
    """

    def __init__(self, environ: Mapping[str, str], pid: int | None = None) -> None:
        self._address = _address(environ.get(SOCKET, ""))
        self.watchdog_s = _watchdog_s(environ, os.getpid() if pid is None else pid)
        self._lock = threading.Lock()
        self._warned = False

    def ready(self, status: str) -> None:
        """Report that the service is ready."""
        self._send("READY=1", f"STATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """Report the state in one line, which `systemctl status` shows."""
        self._send(f"STATUS={_one_line(status)}")

    def alive(self) -> None:
        """Send the watchdog message."""
        self._send("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        """Report that the service is stopping."""
        self._send("STOPPING=1", f"STATUS={_one_line(status)}")

    def _send(self, *assignments: str) -> None:
        if self._address is None:
            return
        message = "\n".join(assignments).encode("utf-8", "replace")
        try:
            # Not blocking: a supervisor that does not read must not hold up the loop.
            with self._lock, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
                channel.connect(self._address)
                channel.send(message)
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("supervisor_not_reached", detail=f"{SOCKET} is set but cannot be written to: {error}")
        else:
            self._warned = False


class Heart:
    """A thread that sends the watchdog message while `beats` returns that the loop turns."""

    def __init__(self, notifier: Notifier, beats: Callable[[], bool]) -> None:
        self._notifier, self._beats = notifier, beats
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start; does nothing when the supervisor expects no watchdog message."""
        if self._notifier.watchdog_s is not None:
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        assert self._notifier.watchdog_s is not None
        silent = False
        while True:
            if self._beats():
                self._notifier.alive()
                silent = False
            elif not silent:
                silent = True
                log.error("watchdog_withheld", detail="the loop does not turn; the supervisor will restart this agent")
            if self._stopping.wait(self._notifier.watchdog_s / PINGS_PER_PERIOD):
                return


def _address(name: str) -> str | None:
    """Return the socket's address: a path, or an abstract name, which the environment writes with a leading @."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    # A value for another process, such as a wrapper, is ignored.
    meant = environ.get(WATCHDOG_PID, str(pid)) == str(pid)
    text = environ.get(WATCHDOG_USEC, "")
    return int(text) / 1e6 if meant and text.isdecimal() and int(text) > 0 else None


def _one_line(status: str) -> str:
    return " ".join(status.split())[:LONGEST_STATUS]
