"""What VMs of a pool report of their CPU, folded into hours and five minutes as it arrives (§13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from collectors.base import Refusal, SampleSink
from collectors.intake import IntakeLimits
from domain.errors import RejectReason, SampleRejected
from domain.rules.oversubscription.usage import clean_sample
from domain.samples import PREFIX, Sample, VmMetric, VmSeries, parse_path

HOUR_S: Final = 3600.0
FIVE_MINUTES_S: Final = 300.0
MOST_VMS: Final = 250_000
KEPT_HOURS: Final = 3
MOST_UNWRITTEN_HOURS: Final = 12
"""So many hours are held for a ledger that cannot be written; beyond that the oldest give way."""
KEPT_FIVES: Final = 3
VmKey = tuple[str, str]
"""Subscriber and VM."""


@dataclass(frozen=True, slots=True)
class Hour:
    """A VM's hour: mean and largest share of its cores in use, from so many readings."""

    mean: float
    largest: float
    readings: int


@dataclass(slots=True)
class _Bins:
    """A VM's readings by hour, and by five minutes: sum, count and largest of each that is still open."""

    hours: dict[int, list[float]] = field(default_factory=dict)
    fives: dict[int, list[float]] = field(default_factory=dict)
    newest: float = float("-inf")


class UsageBook:
    """The readings of one pool; any thread may write, the loop reads.

    clipped: readings above 100 % that were taken as 100 %. ignored: metrics that say nothing of CPU usage.
    """

    def __init__(self, limits: IntakeLimits | None = None, most_vms: int = MOST_VMS) -> None:
        self._limits = limits or IntakeLimits()
        self._most_vms = most_vms
        self._lock = Lock()
        self._vms: dict[VmKey, _Bins] = {}
        self._closed_hour = -1
        self._unwritten_from: int | None = None
        self.clipped = 0
        self.rejected = 0

    def add(self, subscriber: str, vm: str, percent: float, at: float, now: float) -> RejectReason | None:
        """Take one reading of CPU in percent of the requested cores; return why it is refused, None when it is not."""
        reason = self._add((subscriber, vm), percent, at, now)
        if reason is not None:
            with self._lock:
                self.rejected += 1
        return reason

    def _add(self, key: VmKey, percent: float, at: float, now: float) -> RejectReason | None:
        if at != at or at in (float("inf"), float("-inf")):
            return RejectReason.NOT_FINITE
        try:
            usage = clean_sample(percent / 100.0)
        except SampleRejected as rejected:
            return rejected.reason
        if at > now + self._limits.max_ahead_s:
            return RejectReason.FUTURE
        if at <= now - self._limits.max_age_s:
            return RejectReason.TOO_OLD
        hour, five = int(at // HOUR_S), int(at // FIVE_MINUTES_S)
        with self._lock:
            if hour <= self._closed_hour:
                return RejectReason.LATE
            bins = self._vms.get(key)
            if bins is None:
                if len(self._vms) >= self._most_vms:
                    return RejectReason.TOO_MANY_SERIES
                bins = self._vms[key] = _Bins()
            if at == bins.newest:
                # A line sent twice counts once.
                return None
            if percent > 100.0:
                self.clipped += 1
            bins.newest = max(bins.newest, at)
            for index, held, kept in ((hour, bins.hours, KEPT_HOURS), (five, bins.fives, KEPT_FIVES)):
                entry = held.get(index)
                if entry is None:
                    entry = held[index] = [0.0, 0.0, 0.0]
                    for old in sorted(held)[:-kept]:
                        if held is bins.fives or not self._is_unwritten(old, hour):
                            del held[old]
                entry[0] += usage
                entry[1] += 1.0
                entry[2] = max(entry[2], usage)
        return None

    def hold(self, hour: int) -> None:
        """Keep this hour and later ones until `written` says that they are on disk."""
        with self._lock:
            self._unwritten_from = hour

    def hours(self) -> tuple[int, ...]:
        """Return the hours of which there are readings, the oldest first."""
        with self._lock:
            return tuple(sorted({hour for bins in self._vms.values() for hour in bins.hours}))

    def close(self, hour: int) -> dict[VmKey, Hour]:
        """Close an hour to further readings and return what it holds; it stays here until `written`."""
        with self._lock:
            # A clock that was set back begins anew.
            self._closed_hour = hour
            return {
                key: Hour(min(entry[0] / entry[1], 1.0), entry[2], int(entry[1]))
                for key, bins in self._vms.items()
                if (entry := bins.hours.get(hour)) is not None
            }

    def written(self, hour: int, now: float) -> None:
        """Forget this hour and those before it, and VMs that were silent for three hours."""
        with self._lock:
            self._unwritten_from = hour + 1
            for key, bins in list(self._vms.items()):
                for old in [held for held in bins.hours if held <= hour]:
                    del bins.hours[old]
                if not bins.hours and bins.newest < now - KEPT_HOURS * HOUR_S:
                    del self._vms[key]

    def _is_unwritten(self, hour: int, newest: int) -> bool:
        start = self._unwritten_from
        return start is not None and hour >= start and hour > newest - MOST_UNWRITTEN_HOURS

    def five_minutes(self, index: int) -> dict[VmKey, float]:
        """Return the mean usage of each VM that reported in these five minutes since the epoch."""
        with self._lock:
            return {
                key: min(entry[0] / entry[1], 1.0)
                for key, bins in self._vms.items()
                if (entry := bins.fives.get(index)) is not None
            }

    def newest(self) -> float:
        """Return the time of the newest reading, -inf before any."""
        with self._lock:
            return max((bins.newest for bins in self._vms.values()), default=float("-inf"))


class PoolSink:
    """Takes readings of pools into their books, and passes every other one on."""

    def __init__(self, store: SampleSink, books: Mapping[str, UsageBook]) -> None:
        self._store = store
        self._books = dict(books)
        self._starts = tuple(
            start.encode() for name in books for start in (f"{PREFIX}.{name}.", f"{PREFIX}.{VmMetric.CPU_PERCENT};")
        )
        self._known: dict[bytes, tuple[UsageBook, VmSeries]] = {}

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Take readings by path; see `SampleSink`."""
        ours = [k for k, path in enumerate(paths) if path.startswith(self._starts)]
        if not ours:
            return self._store.append(paths, values, times, now)
        refused: list[Refusal] = []
        taken = set()
        for k in ours:
            found = self._series(paths[k])
            if found is None:
                continue
            taken.add(k)
            book, series = found
            if series.metric is VmMetric.CPU_PERCENT:
                reason = book.add(series.group, series.vm, values[k], times[k], now)
                if reason is not None:
                    refused.append(Refusal(k, reason))
        rest = [k for k in range(len(paths)) if k not in taken]
        if rest:
            passed = self._store.append(
                [paths[k] for k in rest], [values[k] for k in rest], [times[k] for k in rest], now
            )
            refused += [Refusal(rest[refusal.position], refusal.reason) for refusal in passed]
        return sorted(refused, key=lambda refusal: refusal.position)

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Take samples; see `SampleSink`."""
        paths = [sample.series.path.encode("utf-8", "replace") for sample in samples]
        return self.append(paths, [sample.value for sample in samples], [sample.at for sample in samples], now)

    def _series(self, path: bytes) -> tuple[UsageBook, VmSeries] | None:
        known = self._known.get(path)
        if known is None:
            try:
                series = parse_path(path.decode("utf-8"))
            except (UnicodeDecodeError, SampleRejected):
                return None
            if not isinstance(series, VmSeries) or series.fleet not in self._books:
                return None
            known = (self._books[series.fleet], series)
            if len(self._known) < 2 * MOST_VMS:
                self._known[path] = known
        return known
