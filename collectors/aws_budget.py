"""The call budget: a token bucket per family of AWS calls, with a pause after throttling and counters for all of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from domain.clock import Clock


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float
    pause_s: float = 0.0
    paused_until: float = 0.0


class CallBudget:
    """At most `calls_per_minute` calls a minute of each family, in bursts of up to that many.

    A family that AWS throttled is left alone for `first_pause_s`, twice as long after each further throttled call up to
    `longest_pause_s` (shorter than a tick, so that every tick tries again); one answered call ends that. Thread-safe;
    times are those of `clock.monotonic()`.
    """

    def __init__(
        self, calls_per_minute: int, clock: Clock, *, first_pause_s: float = 5.0, longest_pause_s: float = 40.0
    ) -> None:
        self._per_s = calls_per_minute / 60.0
        self._burst = float(calls_per_minute)
        self._clock = clock
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s
        self._buckets: dict[str, _Bucket] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Calls so far by (family, what came of them): ok, a failure class, or `refused` for those never sent."""
        with self._lock:
            return MappingProxyType(dict(self._counts))

    def refusal(self, family: str) -> str | None:
        """Take one call out of the family's budget; return None, or a sentence that says why there is none to take."""
        with self._lock:
            now = self._clock.monotonic()
            bucket = self._bucket(family, now)
            bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._per_s)
            bucket.at = now
            if now < bucket.paused_until:
                self._counts[family, "refused"] += 1
                return f"AWS throttles {family}; next call in {bucket.paused_until - now:.0f} s"
            if bucket.tokens < 1.0:
                self._counts[family, "refused"] += 1
                return f"the budget of {self._burst:.0f} {family} calls a minute is spent; the rest waits"
            bucket.tokens -= 1.0
            return None

    def settle(self, family: str, result: str, *, throttled: bool = False) -> None:
        """Count a call's `result`; a throttled one pauses the family, any other answer ends the pause."""
        with self._lock:
            self._counts[family, result] += 1
            now = self._clock.monotonic()
            bucket = self._bucket(family, now)
            if throttled:
                bucket.pause_s = min(self._longest_pause_s, 2.0 * bucket.pause_s or self._first_pause_s)
                bucket.paused_until = now + bucket.pause_s
            else:
                bucket.pause_s = bucket.paused_until = 0.0

    def _bucket(self, family: str, now: float) -> _Bucket:
        return self._buckets.setdefault(family, _Bucket(self._burst, now))
