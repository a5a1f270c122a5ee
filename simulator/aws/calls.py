"""The call log: who asked for what, what it was answered, and which fault stood in the way."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from simulator.aws.requests import AwsRequest

KEPT = 200_000
"""How many calls the log holds before it forgets the oldest."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as logged. `at` is the cloud's time when it arrived; `status` 0 means the caller got no answer."""

    seq: int
    at: float
    access_key: str
    service: str
    operation: str
    mutating: bool
    plane: str
    params: dict[str, str]
    status: int
    fault: str | None


class CallLog:
    """Calls in the order they were answered, numbered from 1."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=KEPT)
        self._last = 0
        self._lock = threading.Lock()

    def record(self, request: AwsRequest, at: float, status: int, fault: str | None) -> None:
        """Append one call."""
        with self._lock:
            self._last += 1
            self._calls.append(
                Call(
                    self._last,
                    at,
                    request.access_key,
                    request.service,
                    request.operation,
                    request.mutating,
                    request.plane,
                    request.summary,
                    status,
                    fault,
                )
            )

    def since(self, seq: int, **wanted: str) -> list[dict[str, Any]]:
        """Return the calls numbered above `seq` whose fields equal `wanted` (compared as text), oldest first."""
        with self._lock:
            calls = []
            for call in reversed(self._calls):
                if call.seq <= seq:
                    break
                calls.append(call)
        rows = [asdict(call) for call in reversed(calls)]
        return [row for row in rows if all(str(row[key]).lower() == value.lower() for key, value in wanted.items())]

    @property
    def last_seq(self) -> int:
        """Return the number of the latest call, 0 before the first."""
        return self._last
