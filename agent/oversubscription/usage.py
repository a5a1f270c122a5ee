"""What VMs of a pool report of their CPU, folded into hours and five minutes as it arrives (§13)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from collectors.base import Refusal, SampleSink
from collectors.intake import IntakeLimits
from collectors.vm_names import Place, UnknownVms, VmNames
from domain.errors import RejectReason, SampleRejected
from domain.rules.oversubscription.usage import clean_sample
from domain.samples import PREFIX, Sample, VmMetric, VmSeries, parse_path
from domain.units import HOUR_S

FIVE_MINUTES_S: Final = 300.0
MOST_VMS: Final = 250_000
WAITING_VMS: Final = 5_000
"""VMs that the inventory does not list and whose readings are stored until it does or is read twice."""
SPELLINGS: Final = 8
"""Paths of one VM that are remembered; others are read anew each time."""
KEPT_HOURS: Final = 3
MOST_UNWRITTEN_HOURS: Final = 12
"""Most hours that are stored for a ledger that cannot be written; beyond that the oldest give way."""
KEPT_FIVES: Final = 3
NAME: Final = re.compile(r"[A-Za-z0-9_:@/+-]{1,128}")
"""A subscriber or VM, as the inventory may list it."""
VmKey = tuple[str, str]
"""Subscriber and VM."""
HERE: Final = ("", "")


@dataclass(slots=True)
class _Bins:
    """A VM's readings by hour, and by five minutes: sum and count of each that is still open."""

    hours: dict[int, list[float]] = field(default_factory=dict)
    fives: dict[int, list[float]] = field(default_factory=dict)
    newest: float = float("-inf")
    paths: list[bytes] = field(default_factory=list)


class UsageBook:
    """The readings of one pool; any thread may write, the loop reads.

    VMs are those of the inventory, as `show` gives them, and a bounded number of others that wait for it. clipped:
    readings above 100 % that were taken as 100 %. rejected: readings that were refused. spellings: of paths.
    """

    def __init__(
        self, limits: IntakeLimits | None = None, most_vms: int = MOST_VMS, unknown_per_peer: int = WAITING_VMS // 5
    ) -> None:
        self._limits = limits or IntakeLimits()
        self._most_vms = most_vms
        self._lock = Lock()
        self._vms: dict[VmKey, _Bins] = {}
        self._closed_hour = -1
        self._unwritten_from: int | None = None
        self._names: VmNames[VmKey] = VmNames(self._drop, WAITING_VMS, unknown_per_peer)
        self._names.watch({HERE: WAITING_VMS})
        self._shown = 0
        self.spellings: dict[bytes, VmSeries] = {}
        self.clipped = 0
        self.rejected = 0

    def show(self, vms: Iterable[VmKey]) -> None:
        """Take in an inventory that was read anew."""
        with self._lock:
            self._shown += 1
            self._names.show(HERE, vms, WAITING_VMS, float(self._shown))

    def unknown_vms(self) -> UnknownVms:
        """Return what was reported of VMs that the inventory does not list."""
        with self._lock:
            return self._names.unknown()[HERE]

    def remember(self, path: bytes, series: VmSeries) -> None:
        """Remember which VM a path names, while readings of that VM are stored."""
        with self._lock:
            bins = self._vms.get((series.group, series.vm))
            if bins is not None and len(bins.paths) < SPELLINGS:
                bins.paths.append(path)
                self.spellings[path] = series

    def add(
        self, subscriber: str, vm: str, percent: float, at: float, now: float, peer: str = ""
    ) -> RejectReason | None:
        """Take one reading of CPU in percent of the requested cores; return why it is refused, None when it is not."""
        reason = self._add((subscriber, vm), percent, at, now, peer)
        if reason is not None:
            with self._lock:
                self.rejected += 1
        return reason

    def _drop(self, place: Place, key: VmKey) -> None:
        bins = self._vms.pop(key, None)
        for path in bins.paths if bins is not None else ():
            self.spellings.pop(path, None)

    def _add(self, key: VmKey, percent: float, at: float, now: float, peer: str) -> RejectReason | None:
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
                if NAME.fullmatch(key[0]) is None or NAME.fullmatch(key[1]) is None:
                    return RejectReason.FOREIGN_PATH
                if len(self._vms) >= self._most_vms:
                    return RejectReason.TOO_MANY_SERIES
                reason = self._names.admit(HERE, key, peer)
                if reason is not None:
                    return reason
                bins = self._vms[key] = _Bins()
            if at == bins.newest:
                # A line sent twice counts once.
                return None
            if percent > 100.0:
                self.clipped += 1
            bins.newest = max(bins.newest, at)
            for index, sums, most in ((hour, bins.hours, KEPT_HOURS), (five, bins.fives, KEPT_FIVES)):
                entry = sums.get(index)
                if entry is None:
                    entry = sums[index] = [0.0, 0.0]
                    for old in sorted(sums)[:-most]:
                        if sums is bins.fives or not self._is_unwritten(old, hour):
                            del sums[old]
                entry[0] += usage
                entry[1] += 1.0
        return None

    def hold(self, hour: int) -> None:
        """Keep this hour and later ones until `written` says that they are on disk."""
        with self._lock:
            self._unwritten_from = hour

    def hours(self) -> tuple[int, ...]:
        """Return the hours of which there are readings, the oldest first."""
        with self._lock:
            return tuple(sorted({hour for bins in self._vms.values() for hour in bins.hours}))

    def close(self, hour: int) -> dict[VmKey, float]:
        """Close an hour to further readings; return the mean usage of each VM, which stays here until `written`."""
        with self._lock:
            # A clock that was set back starts again.
            self._closed_hour = hour
            return {
                key: min(entry[0] / entry[1], 1.0)
                for key, bins in self._vms.items()
                if (entry := bins.hours.get(hour)) is not None
            }

    def written(self, hour: int, now: float) -> None:
        """Forget this hour and those before it, and VMs that were silent for three hours."""
        with self._lock:
            self._unwritten_from = hour + 1
            for key, bins in list(self._vms.items()):
                for old in [one for one in bins.hours if one <= hour]:
                    del bins.hours[old]
                if not bins.hours and bins.newest < now - KEPT_HOURS * HOUR_S:
                    self._names.forget(HERE, key)
                    self._drop(HERE, key)

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
        self._plain = tuple(self._books.values())

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Take readings by path; see `SampleSink`."""
        ours = [k for k, path in enumerate(paths) if path.startswith(self._starts)]
        if not ours:
            return self._store.append(paths, values, times, now, peer)
        refused: list[Refusal] = []
        taken = set()
        for k in ours:
            found = self._series(paths[k])
            if found is None:
                continue
            taken.add(k)
            book, series = found
            if series.metric is VmMetric.CPU_PERCENT:
                reason = book.add(series.group, series.vm, values[k], times[k], now, peer)
                if reason is not None:
                    refused.append(Refusal(k, reason))
            if paths[k] not in book.spellings:
                book.remember(paths[k], series)
        rest = [k for k in range(len(paths)) if k not in taken]
        if rest:
            passed = self._store.append(
                [paths[k] for k in rest], [values[k] for k in rest], [times[k] for k in rest], now, peer
            )
            refused += [Refusal(rest[refusal.position], refusal.reason) for refusal in passed]
        return sorted(refused, key=lambda refusal: refusal.position)

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Take samples; see `SampleSink`."""
        paths = [sample.series.path.encode("utf-8", "replace") for sample in samples]
        return self.append(paths, [sample.value for sample in samples], [sample.at for sample in samples], now)

    def _series(self, path: bytes) -> tuple[UsageBook, VmSeries] | None:
        for book in self._plain:
            known = book.spellings.get(path)
            if known is not None:
                return book, known
        try:
            series = parse_path(path.decode("utf-8"))
        except (UnicodeDecodeError, SampleRejected):
            return None
        if not isinstance(series, VmSeries) or series.fleet not in self._books:
            return None
        return self._books[series.fleet], series
