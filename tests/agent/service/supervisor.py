"""A supervisor as systemd is one: a datagram socket that takes notifications."""

from __future__ import annotations

import contextlib
import socket
from types import TracebackType


class Supervisor:
    """Receives notifications under `name`, a path or, with a leading @, an abstract name."""

    def __init__(self, name: str) -> None:
        self.environ = {"NOTIFY_SOCKET": name}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name[1:] if name.startswith("@") else name)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def next(self, timeout_s: float = 60.0) -> dict[str, str]:
        """The next notification's assignments; TimeoutError when none comes."""
        self._socket.settimeout(timeout_s)
        text = self._socket.recv(65_536).decode()
        return dict(line.split("=", 1) for line in text.splitlines())

    def until(self, name: str, timeout_s: float = 60.0) -> dict[str, str]:
        """The next notification that has this assignment, others being dropped."""
        while True:
            said = self.next(timeout_s)
            if name in said:
                return said

    def drain(self) -> None:
        """Drop whatever waits."""
        with contextlib.suppress(TimeoutError, BlockingIOError):
            while True:
                self.next(timeout_s=0.001)
