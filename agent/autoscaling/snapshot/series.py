"""The bounded store of readings: one small ring per series, in flat buffers that numpy reads without copying.

Threads: writers (the listener's thread, collector threads) call `append`; each batch runs under one lock, which makes
it atomic against other writers. The loop's thread calls everything else. It reads the buffers without the lock: a
reading's value is stored before its time, both stores are single machine words, and a bin is closed (under the lock)
before it is folded, so that nothing inside it changes any more. A row is given to another series only after a silence
far longer than a bin, or once the bin after is closed, so a fold never mixes two owners of one row.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import compress, count
from operator import ne
from sys import intern
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.snapshot.senders import Senders
from collectors.base import Refusal, address_of
from collectors.intake import COUNTERS, PERCENT_METRICS, Claims, Conflict, IntakeLimits, RefusedClaim, value_range
from collectors.vm_names import COLLECTIONS, SPARE, Place, UnknownVms, VmNames
from domain.errors import RejectReason, SampleRejected
from domain.fleet import Fleet
from domain.samples import QUEUE_SEGMENT, QueueMetric, Sample, Series, SignalSeries, VmMetric, VmSeries, parse_path

DEPTH = 32
"""Readings kept per series: five minutes at one in ten seconds. A power of two; a series with more than one in two
seconds is averaged over the last 32 readings of the minute."""

ABSENT_ROW = -1
VM_COLUMNS = tuple(VmMetric)
QUEUE_COLUMNS = tuple(QueueMetric)
_VM_COLUMN = {metric: column for column, metric in enumerate(VM_COLUMNS)}
_QUEUE_COLUMN = {metric: column for column, metric in enumerate(QUEUE_COLUMNS)}
_NO_VMS: Mapping[str, list[int]] = {}
_NO_QUEUE = (ABSENT_ROW,) * len(QUEUE_COLUMNS)
_FIRST_ROWS = 1024
AT_ONCE = 32
MOST_AT_ONCE = 1024
"""Readings that are stored at once, at least and at most, if none needs a closer look."""
_HARVEST_EVERY_S = 600.0
UNKNOWN_PER_PEER = 1000
LEAST_CAPACITY = 60_000
GONE_AFTER_S = 60.0 * (COLLECTIONS + 1)
"""A VM of another agent's fleet is gone after such a silence, as it is here after collections that do not show it."""

Rows = NDArray[np.int64]
ClaimKey = tuple[str, str, str]
"""Fleet, group key (`queue` for its queue), and metric."""


class SeriesStore:
    """Readings of up to `capacity` series; refused beyond that, and removed when silent for `forget_after_s`.

    capacity: more where the watched fleets may have more VMs. `watched` fleets restrict it to their groups and to the
    VMs that `show` names: other VMs wait for two collections, bounded and beside the capacity. At capacity, series
    silent for `reclaim_after_s` make room.
    """

    def __init__(
        self,
        capacity: int = LEAST_CAPACITY,
        limits: IntakeLimits | None = None,
        forget_after_s: float = 7200.0,
        reclaim_after_s: float = 900.0,
        watched: Collection[Fleet] | None = None,
        claims: Mapping[str, Claims] | None = None,
        unknown_per_peer: int = UNKNOWN_PER_PEER,
        signals: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.capacity = self._least_capacity = capacity
        self._limits = limits or IntakeLimits()
        self._forget_after_s = forget_after_s
        self._reclaim_after_s = reclaim_after_s
        self._watched: dict[tuple[str, str], float] | None = None
        self._claims: dict[str, Claims] = {}
        self._too_high: dict[tuple[str, str], dict[str, float]] = {}
        self._refused: dict[ClaimKey, RefusedClaim] = {}
        self._conflicts: dict[ClaimKey, Conflict] = {}
        self._elsewhere: Set[str] = frozenset()
        self._names: VmNames[str] = VmNames(self._drop_vm, capacity // len(VM_COLUMNS), unknown_per_peer)
        self._lock = Lock()
        self._rows_by_path: dict[bytes, int] = {}
        self._spellings = 0
        self._series: list[Series | None] = []
        self._paths: list[list[bytes]] = []
        self._first_path: list[bytes] = []
        self._full = array("d")
        self._next_slot = array("q")
        self._peers: list[str] = []
        self._senders: dict[int, Senders] = {}
        self._free: list[int] = []
        self._left: list[int] = []
        self._vms: dict[tuple[str, str], dict[str, list[int]]] = {}
        self._queues: dict[str, list[int]] = {}
        self._signals: dict[str, dict[str, list[int]]] = {}
        self._own_signals: Mapping[str, Collection[str]] = {}
        rows = min(_FIRST_ROWS, capacity)
        self._times = array("d", [NEVER]) * (rows * DEPTH)
        self._values = array("d", [0.0]) * (rows * DEPTH)
        self._newest = array("d", [NEVER]) * rows
        self._closed_until = NEVER
        self._fold: BinFold | None = None
        self._harvested_at = NEVER
        self._reclaim_not_before = NEVER
        if watched is not None:
            self.watch(watched, claims, signals)

    def __len__(self) -> int:
        return len(self._series) - len(self._free) - len(self._left)

    def watch(
        self,
        fleets: Collection[Fleet],
        claims: Mapping[str, Claims] | None = None,
        signals: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """Accept readings of these fleets from now on; series of other fleets are removed when they become silent.

        claims: by fleet, what its sources may claim at most, where that differs from the usual. signals: by fleet, the
        names of its own.
        """
        with self._lock:
            self._watched = {(fleet.name, group.key): group.vm_type.cores for fleet in fleets for group in fleet.groups}
            maxima = {(fleet.name, group.key): group.maximum for fleet in fleets for group in fleet.groups}
            wanted = (sum(maxima.values()) + SPARE * len(maxima)) * len(VM_COLUMNS) + len(fleets) * len(QUEUE_COLUMNS)
            self.capacity = max(self._least_capacity, wanted)
            self._names.watch(maxima, self.capacity // len(VM_COLUMNS))
            self._own_signals = signals or {}
            self._claims = {fleet.name: (claims or {}).get(fleet.name) or Claims() for fleet in fleets}
            for row, series in enumerate(self._series):
                if series is not None:
                    self._full[row] = self._full_value(series)

    def show(self, fleet: str, group: str, vms: Iterable[str], most: int, at: float) -> None:
        """Update the VMs that the cloud shows in a group, of at most so many, at the end of this minute.

        Others keep what they reported while they wait; a name that two collections in a row do not show is forgotten.
        """
        with self._lock:
            self._names.show((fleet, group), vms, most, at)

    def leave(self, fleets: Set[str], now: float) -> None:
        """Take the fleets that other agents lead now, all of them: no group of theirs is shown here.

        Readings of a fleet are dropped when it is first among them: the next ones may come after a gap, over which a
        counter has grown. Later ones are stored, for an agent that receives all lines and takes the fleet over; a VM
        that is silent for GONE_AFTER_S gives its name to another.
        """
        with self._lock:
            gone, self._elsewhere = fleets - self._elsewhere, frozenset(fleets)
            self._names.leave({place for place in self._watched or () if place[0] in fleets})
            tables = [rows for (fleet, _), vms in self._vms.items() if fleet in gone for rows in vms.values()]
            tables += [rows for fleet, rows in self._queues.items() if fleet in gone]
            tables += [rows for fleet, of in self._signals.items() if fleet in gone for rows in of.values()]
            for row in [row for rows in tables for row in rows if row != ABSENT_ROW]:
                self._drop(row)
                self._left.append(row)
            if fleets:
                self._drop_silent(now - GONE_AFTER_S, fleets)

    def unknown_vms(self) -> Mapping[Place, UnknownVms]:
        """Return by fleet and group key the reports under names that the cloud does not show."""
        with self._lock:
            return self._names.unknown()

    def claims(self, fleet: str) -> Claims:
        """Return the claim limits of this fleet's sources."""
        return self._claims.get(fleet) or Claims()

    def refused_claims(self) -> Mapping[ClaimKey, RefusedClaim]:
        """Return the refused claims since the start, by fleet, group key (`queue` for its queue) and metric."""
        with self._lock:
            return dict(self._refused)

    def conflicts(self) -> dict[ClaimKey, Conflict]:
        """Return the readings since the start that contradict others, by fleet, group key (or `queue`) and metric."""
        with self._lock:
            return dict(self._conflicts)

    # Writing

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> list[Refusal]:
        """Store readings; return those refused.

        Of several for one time one counts, the highest: a VM with two senders is busy when it is busy for either,
        also where they report by turns. Of a signal, whose direction is not known, the last one counts.
        """
        refused: list[Refusal] = []
        with self._lock:
            row_of = self._rows_by_path.get
            full, next_slot, peers, senders = self._full, self._next_slot, self._peers, self._senders
            after = max(now - self._limits.max_age_s, self._closed_before(now))
            until = now + self._limits.max_ahead_s
            first = self._store_at_once(paths, values, times, after, until, peer) if len(paths) >= AT_ONCE else 0
            kept_times, kept_values, newest = self._times, self._values, self._newest
            for position in range(first, len(paths)):
                path, value, at = paths[position], values[position], times[position]
                row = row_of(path)
                if row is None:
                    admitted = self._admit_path(path, value, at, now, peer)
                    if isinstance(admitted, RejectReason):
                        refused.append(Refusal(position, admitted))
                        continue
                    row = admitted
                    kept_times, kept_values, newest = self._times, self._values, self._newest
                if not (0.0 <= value <= full[row] and after < at <= until):
                    series = self._series[row]
                    assert series is not None, "a path leads to a row that is in use"
                    reason = self._refusal(series, value, at, now, peer, row)
                    if reason is not None:
                        refused.append(Refusal(position, reason))
                        continue
                    if series.metric in PERCENT_METRICS:
                        value = full[row]
                counted = value
                if peer != peers[row] or row in senders:
                    counted = self._busiest(row, value, at, peer)
                if at > newest[row]:
                    slot = next_slot[row]
                    kept_values[slot] = counted
                    kept_times[slot] = at
                    newest[row] = at
                    peers[row] = peer
                    slot += 1
                    next_slot[row] = slot if slot & (DEPTH - 1) else slot - DEPTH
                else:
                    self._place_out_of_order(row, value, counted, at, peer)
        return refused

    def _store_at_once(
        self,
        paths: Sequence[bytes],
        values: Sequence[float],
        times: Sequence[float],
        after: float,
        until: float,
        peer: str,
    ) -> int:
        """Store the first readings, many at once, up to one that needs a closer look; return their number.

        The result is that of storing them one by one: in each part every reading is of another series, believed, newer
        than the series, and from its only sender.
        """
        first = 0
        newest, full = np.frombuffer(self._newest), np.frombuffer(self._full)
        next_slot = np.frombuffer(self._next_slot, dtype=np.int64)
        kept_times, kept_values = np.frombuffer(self._times), np.frombuffer(self._values)
        while (length := len(rows := self._rows_expected(paths, first))) >= AT_ONCE:
            peers = (
                self._peers[rows.start : rows.stop] if isinstance(rows, range) else [self._peers[row] for row in rows]
            )
            if peers.count(peer) < length or not self._senders.keys().isdisjoint(rows):
                break
            own = slice(rows.start, rows.stop) if isinstance(rows, range) else np.array(rows)
            value, at = np.array(values[first : first + length]), np.array(times[first : first + length])
            believed = (value >= 0.0) & (value <= full[own]) & (at > np.maximum(after, newest[own])) & (at <= until)
            if not believed.all():
                break
            slots = next_slot[own]
            kept_values[slots] = value
            kept_times[slots] = at
            newest[own] = at
            next_slot[own] = np.where(slots % DEPTH == DEPTH - 1, slots + 1 - DEPTH, slots + 1)
            first += length
        return first

    def _rows_expected(self, paths: Sequence[bytes], first: int) -> Sequence[int]:
        """Return the rows of paths from a place on, none twice; few or none where the paths need a closer look.

        A sender repeats its paths in the order of their first arrival, in which rows are given: the path expected at
        each place is compared, which is cheaper than to look it up.
        """
        part = paths[first : first + MOST_AT_ONCE]
        row = self._rows_by_path.get(part[0], ABSENT_ROW) if len(part) >= AT_ONCE else ABSENT_ROW
        if row == ABSENT_ROW:
            return ()
        expected = self._first_path[row : row + len(part)]
        same = next(compress(count(), map(ne, part, expected)), len(expected))
        if same >= AT_ONCE:
            return range(row, row + same)
        found = [self._rows_by_path.get(path, ABSENT_ROW) for path in part]
        if found.count(row) > 1:
            found = found[: found.index(row, 1)]
        return found if ABSENT_ROW not in found and len(set(found)) == len(found) else ()

    def append_samples(self, samples: Sequence[Sample], now: float) -> list[Refusal]:
        """Store samples; return those refused."""
        paths = [sample.series.path.encode("utf-8", "replace") for sample in samples]
        return self.append(paths, [sample.value for sample in samples], [sample.at for sample in samples], now)

    def _refusal(
        self, series: Series, value: float, at: float, now: float, peer: str, row: int = ABSENT_ROW
    ) -> RejectReason | None:
        """Return why a reading is refused; an accepted percentage above 100 counts as 100."""
        if not math.isfinite(at):
            return RejectReason.NOT_FINITE
        reason, limit, bound = self._judged(series, value, at, row)
        if reason is not None:
            self._note_refused(series, value, peer, limit, bound)
            if isinstance(series, VmSeries) and series.metric is VmMetric.BUSY_CORES and limit < value < math.inf:
                self._note_too_high(series, at, now)
            return reason
        if at > now + self._limits.max_ahead_s:
            return RejectReason.FUTURE
        if at <= now - self._limits.max_age_s:
            return RejectReason.TOO_OLD
        if at <= self._closed_before(now):
            return RejectReason.LATE
        if series.metric in COUNTERS and row != ABSENT_ROW:
            self._note_fall(series, value, at, row)
        return None

    def _judged(self, series: Series, value: float, at: float, row: int) -> tuple[RejectReason | None, float, str]:
        """Return why a value exceeds a claim limit (None when it does not), the limit, and its name."""
        metric = series.metric
        most = limit = value_range(metric).limit
        bound, claims = "", self._claims.get(series.fleet)
        if claims is not None and metric not in COUNTERS:
            limit, bound = claims.limit(metric, self._cores(series))
        elif claims is not None and (before := self._last_of(row)) is not None:
            limit, bound = before + claims.growth(at - self._newest[row], metric), "MAX_SUBMITTED_PER_MINUTE"
        if not math.isfinite(value):
            return RejectReason.NOT_FINITE, limit, bound
        if not 0.0 <= value <= most:
            return RejectReason.OUT_OF_RANGE, limit, bound
        return (RejectReason.IMPLAUSIBLE if value > limit else None), limit, bound

    def _last_of(self, row: int) -> float | None:
        """Return the newest value of a row, None where it has none."""
        if row == ABSENT_ROW or self._newest[row] == NEVER:
            return None
        first = row * DEPTH
        return self._values[self._times.index(self._newest[row], first, first + DEPTH)]

    def _note_fall(self, series: Series, value: float, at: float, row: int) -> None:
        """Note a counter that falls without having restarted."""
        before = self._last_of(row)
        if before is None or not value < before or not at > self._newest[row]:
            return
        if not self.claims(series.fleet).restarted(before, value, at - self._newest[row]):
            detail = (
                f"it fell from {before:g} to {value:g}, which is no restart: a part of its sum was lost, so nothing "
                "was counted in between; let the job source report a counter that only grows"
            )
            self._note_conflict(series, detail)

    def _note_conflict(self, series: Series, detail: str) -> None:
        key = series.fleet, series.group if isinstance(series, VmSeries) else QUEUE_SEGMENT, str(series.metric)
        before = self._conflicts.get(key)
        self._conflicts[key] = Conflict(1 if before is None else before.count + 1, detail)

    def _cores(self, series: Series) -> float:
        """Return the cores of the VM whose series this is, 0 for a queue's."""
        if self._watched is None or not isinstance(series, VmSeries):
            return 0.0
        return self._watched.get((series.fleet, series.group), 0.0)

    def _note_refused(self, series: Series, value: float, peer: str, limit: float, bound: str) -> None:
        if series.fleet not in self._claims:
            return
        group = series.group if isinstance(series, VmSeries) else QUEUE_SEGMENT
        key = series.fleet, group, str(series.metric)
        before = self._refused.get(key)
        count = 1 if before is None else before.count + 1
        self._refused[key] = RefusedClaim(count, value, address_of(peer), limit, bound)

    def _note_too_high(self, series: VmSeries, at: float, now: float) -> None:
        """Remember of a VM that reports otherwise that its busy cores were above what is believed: it is busy."""
        vms = self.vm_rows(series.fleet, series.group)
        if series.vm in vms and now - self._limits.max_age_s < at <= now + self._limits.max_ahead_s:
            before = {
                vm: then for vm, then in self._too_high.get((series.fleet, series.group), {}).items() if vm in vms
            }
            self._too_high[series.fleet, series.group] = {**before, series.vm: at}

    def too_high_at(self, fleet: str, group: str, vm: str) -> float:
        """Return when a VM last reported more busy cores than are believed, -inf where it never did."""
        with self._lock:
            return self._too_high.get((fleet, group), {}).get(vm, NEVER)

    def _full_value(self, series: Series) -> float:
        """Return the value up to which a reading needs no further check."""
        claims = self._claims.get(series.fleet)
        if claims is None or series.metric in PERCENT_METRICS:
            return value_range(series.metric).full
        if series.metric in COUNTERS:
            # Each of them is held to the one before it.
            return -1.0
        return claims.limit(series.metric, self._cores(series))[0]

    def _closed_before(self, now: float) -> float:
        """Return until when bins are closed; those closed ahead of the clock precede its setting back."""
        return self._closed_until if self._closed_until <= now else NEVER

    def _busiest(self, row: int, value: float, at: float, peer: str) -> float:
        """Return the value that counts, for a reading of a row that another sender reports too, or did before."""
        series = self._series[row]
        if series is None or series.metric is not VmMetric.BUSY_CORES:
            return value
        senders, before = self._senders.get(row), self._last_of(row)
        if senders is None and before is None:
            return value
        if senders is None:
            senders = self._senders[row] = Senders(self._peers[row], before or 0.0, self._newest[row])
        counted = senders.busiest(peer, value, at)
        if senders.single:
            del self._senders[row]
        elif (said := senders.disagreement) is not None:
            self._note_conflict(series, _disagreement(series, *said))
        return counted

    def _place_out_of_order(self, row: int, value: float, counted: float, at: float, peer: str) -> None:
        first = row * DEPTH
        for slot in range(first, first + DEPTH):
            if self._times[slot] == at:
                series, held = self._series[row], self._values[slot]
                assert series is not None, "a reading goes to a row that is in use"
                if value != held and peer != self._peers[row]:
                    self._note_conflict(series, _disagreement(series, (held, self._peers[row]), (value, peer)))
                if counted > held or isinstance(series, SignalSeries):
                    self._values[slot] = counted
                return
        slot = self._next_slot[row]
        ends_newest = self._times[slot] == self._newest[row]
        self._times[slot] = NEVER
        self._values[slot] = counted
        self._times[slot] = at
        if ends_newest:
            # A ring full of older readings, as after a clock was set back: the newest is the newest of those held.
            self._newest[row] = max(self._times[first : first + DEPTH])
        slot += 1
        self._next_slot[row] = slot if slot % DEPTH else slot - DEPTH

    def _admit_path(self, path: bytes, value: float, at: float, now: float, peer: str) -> int | RejectReason:
        """Return the row of a path not seen before, or why it gets none; a reading that is refused makes no series."""
        try:
            text = path.decode("utf-8")
        except UnicodeDecodeError:
            return RejectReason.NOT_TEXT
        if not text.isprintable():
            return RejectReason.NOT_TEXT
        try:
            series = parse_path(text)
        except SampleRejected as rejected:
            return rejected.reason
        if not self._is_watched(series):
            return RejectReason.FOREIGN_PATH
        row = self._row(series)
        if row == ABSENT_ROW:
            reason = self._refusal(series, value, at, now, peer)
            if reason is not None:
                return reason
            if self._watched is not None and isinstance(series, VmSeries):
                reason = self._names.admit((series.fleet, series.group), series.vm, peer)
                if reason is not None:
                    return reason
            if self._is_full() and not self._reclaim(now):
                if isinstance(series, VmSeries) and series.vm not in self.vm_rows(series.fleet, series.group):
                    self._names.forget((series.fleet, series.group), series.vm)
                return RejectReason.TOO_MANY_SERIES
            columns, column = self._columns(series)
            row = columns[column] = self._new_row(series)
        # A tagged path has many spellings; beyond twice the capacity each spelling is parsed again.
        if self._spellings < 2 * self.capacity:
            self._spellings += 1
            self._rows_by_path[path] = row
            if not self._paths[row]:
                self._first_path[row] = path
            self._paths[row].append(path)
        return row

    def _is_full(self) -> bool:
        """Return whether there is no row for another series; series of unknown VMs have rows of their own."""
        of_waiting = len(VM_COLUMNS) * self._names.waiting
        return len(self) - of_waiting >= self.capacity or not (self._free or len(self._series) < self._most_rows)

    @property
    def _most_rows(self) -> int:
        return self.capacity if self._watched is None else 2 * self.capacity

    def _is_watched(self, series: Series) -> bool:
        if self._watched is None:
            return True
        if isinstance(series, VmSeries):
            return (series.fleet, series.group) in self._watched
        if isinstance(series, SignalSeries):
            return series.name in self._own_signals.get(series.fleet, ())
        return series.fleet in self._claims

    def _row(self, series: Series) -> int:
        if isinstance(series, VmSeries):
            columns = self.vm_rows(series.fleet, series.group).get(series.vm)
            return ABSENT_ROW if columns is None else columns[_VM_COLUMN[series.metric]]
        if isinstance(series, SignalSeries):
            return self.signal_row(series.fleet, series.name)
        return self.queue_row(series.fleet, series.metric)

    def _columns(self, series: Series) -> tuple[list[int], int]:
        """Return the table of rows of a series, created where there is none, and its place in it."""
        if isinstance(series, VmSeries):
            vms = self._vms.setdefault((series.fleet, series.group), {})
            return vms.setdefault(intern(series.vm), [ABSENT_ROW] * len(VM_COLUMNS)), _VM_COLUMN[series.metric]
        if isinstance(series, SignalSeries):
            return self._signals.setdefault(series.fleet, {}).setdefault(series.name, [ABSENT_ROW]), 0
        columns = self._queues.setdefault(series.fleet, [ABSENT_ROW] * len(QUEUE_COLUMNS))
        return columns, _QUEUE_COLUMN[series.metric]

    def _new_row(self, series: Series) -> int:
        if isinstance(series, VmSeries):
            series = VmSeries(intern(series.fleet), intern(series.group), intern(series.vm), series.metric)
        full = self._full_value(series)
        if self._free:
            row = self._free.pop()
            self._series[row], self._full[row], self._next_slot[row] = series, full, row * DEPTH
            self._peers[row] = ""
            return row
        row = len(self._series)
        if row == len(self._newest):
            self._grow()
        self._series.append(series)
        self._paths.append([])
        self._first_path.append(b"")
        self._full.append(full)
        self._next_slot.append(row * DEPTH)
        self._peers.append("")
        return row

    def _grow(self) -> None:
        """Replace the buffers by larger ones; a buffer viewed by numpy cannot be resized and stays with its reader."""
        more = min(len(self._newest), self._most_rows - len(self._newest))
        self._times = self._times + array("d", [NEVER]) * (more * DEPTH)
        self._values = self._values + array("d", [0.0]) * (more * DEPTH)
        self._newest = self._newest + array("d", [NEVER]) * more

    # Reading: the loop's thread

    def close_bin(self, start: float, end: float, now: float) -> BinFold:
        """Close (start, end] to further readings (they are LATE from now on) and return its fold.

        Asked again for the same bin, it returns the same fold. A bin that ends before the last closed one means that
        the clock was set back: what lies in the future is then dropped and the bins start over.
        """
        if self._fold is not None and (self._fold.start, self._fold.end) == (start, end):
            return self._fold
        with self._lock:
            if end < self._closed_until:
                self._drop_future(now + self._limits.max_ahead_s)
            self._closed_until = end
            # No reading up to `end` is taken any more: their next owners' readings lie in bins to come.
            # Given in ascending order, the rows of one VM follow each other.
            self._free += reversed(self._left)
            self._left.clear()
            if abs(now - self._harvested_at) > _HARVEST_EVERY_S:
                self._harvested_at = now
                self._drop_silent(now - self._forget_after_s)
            rows = len(self._series)
            times, values = self._rings()
        self._fold = fold_rings(times[:rows], values[:rows], start, end)
        return self._fold

    def vm_rows(self, fleet: str, group: str) -> Mapping[str, Sequence[int]]:
        """Return rows by VM in the order of `VM_COLUMNS`, `ABSENT_ROW` where a metric was never reported."""
        return self._vms.get((fleet, group), _NO_VMS)

    def queue_rows(self, fleet: str) -> Sequence[int]:
        """Return the rows of a fleet's queue in the order of `QUEUE_COLUMNS`, `ABSENT_ROW` where there is none."""
        return self._queues.get(fleet, _NO_QUEUE)

    def queue_row(self, fleet: str, metric: QueueMetric) -> int:
        """Return the row of a fleet's queue metric, or `ABSENT_ROW`."""
        return self.queue_rows(fleet)[_QUEUE_COLUMN[metric]]

    def signal_row(self, fleet: str, name: str) -> int:
        """Return the row of a fleet's signal, or `ABSENT_ROW`."""
        return self._signals.get(fleet, {}).get(name, [ABSENT_ROW])[0]

    def readings(self, row: int, until: float) -> list[tuple[float, float]]:
        """Return (time, value) of a row's readings up to `until`, in order of time; none for `ABSENT_ROW`."""
        if row == ABSENT_ROW:
            return []
        times, values = self._rings()
        pairs = zip(times[row].tolist(), values[row].tolist(), strict=True)
        return sorted((at, value) for at, value in pairs if NEVER < at <= until)

    def latest(self, rows: Rows, until: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return time and value of each row's newest reading up to `until`; -inf and nan where there is none."""
        times, values = self._rings()
        at, value = latest_values(times[rows], values[rows], until)
        missing = rows == ABSENT_ROW
        return np.where(missing, NEVER, at), np.where(missing, np.nan, value)

    def first(self, rows: Rows) -> NDArray[np.float64]:
        """Return the time of each row's earliest reading still held; +inf where there is none."""
        times, _ = self._rings()
        return np.where(rows == ABSENT_ROW, np.inf, first_times(times[rows]))

    def newest_of(self, rows: Rows) -> NDArray[np.float64]:
        """Return the time of each row's newest reading, in the shape of `rows`; -inf where none was ever reported."""
        return np.where(rows == ABSENT_ROW, NEVER, np.frombuffer(self._newest)[rows])

    def newest(self, rows: Rows) -> float:
        """Return the newest time among these rows, -inf when none was ever reported."""
        return float(self.newest_of(rows).max(initial=NEVER))

    def newest_sample(self, fleet: str, group: str, vm: str) -> float | None:
        """Return the time of a VM's newest reading, None when it has none; callable from any thread."""
        with self._lock:
            rows = self._vms.get((fleet, group), _NO_VMS).get(vm, ())
            times = [self._newest[row] for row in rows if row != ABSENT_ROW]
        return max((at for at in times if at > NEVER), default=None)

    def _rings(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.frombuffer(self._times).reshape(-1, DEPTH), np.frombuffer(self._values).reshape(-1, DEPTH)

    def _drop_future(self, beyond: float) -> None:
        times, _ = self._rings()
        times[times > beyond] = NEVER
        np.frombuffer(self._newest)[:] = times.max(axis=1)

    # Forgetting

    def _reclaim(self, now: float) -> bool:
        if now < self._reclaim_not_before:
            return False
        self._reclaim_not_before = now + 60.0
        return self._drop_silent(now - self._reclaim_after_s) > 0

    def _drop_silent(self, since: float, fleets: Set[str] | None = None) -> int:
        """Drop the series that are silent since then, of these fleets those of VMs alone; return their number."""
        newest = np.frombuffer(self._newest)[: len(self._series)]
        # Of other agents' fleets it is asked each minute, where rows without an owner would take most of the time.
        silent, dropped = (newest < since) & ((newest > NEVER) | (fleets is None)), 0
        for row in np.flatnonzero(silent).tolist():
            series = self._series[row]
            if series is not None and (fleets is None or (isinstance(series, VmSeries) and series.fleet in fleets)):
                self._drop(row)
                self._free.append(row)
                dropped += 1
        return dropped

    def _drop_vm(self, place: Place, vm: str) -> None:
        """Remove a VM; its rows are free once the minute is closed, as a fold may be in progress."""
        for row in tuple(self._vms.get(place, _NO_VMS).get(vm, ())):
            if row != ABSENT_ROW:
                self._drop(row)
                self._left.append(row)

    def _drop(self, row: int) -> None:
        series = self._series[row]
        assert series is not None, "only a row in use is dropped"
        columns, column = self._columns(series)
        columns[column] = ABSENT_ROW
        if isinstance(series, VmSeries) and all(other == ABSENT_ROW for other in columns):
            vms = self._vms[series.fleet, series.group]
            del vms[series.vm]
            self._names.forget((series.fleet, series.group), series.vm)
            if not vms:
                del self._vms[series.fleet, series.group]
        for path in self._paths[row]:
            del self._rows_by_path[path]
        self._spellings -= len(self._paths[row])
        self._paths[row], self._first_path[row] = [], b""
        self._senders.pop(row, None)
        self._series[row] = None
        first = row * DEPTH
        self._times[first : first + DEPTH] = array("d", [NEVER]) * DEPTH
        self._newest[row] = NEVER


def _disagreement(series: Series, *said: tuple[float, str]) -> str:
    """Return in words two readings of one series, of two senders: (value, peer) each."""
    whom = f" of {series.vm}" if isinstance(series, VmSeries) else ""
    values = ", ".join(f"{value:g} from {peer or 'a collector'}" for value, peer in said)
    counts = "the last counts" if isinstance(series, SignalSeries) else "the higher counts"
    return (
        f"two senders report{whom}, and differ: {values}; {counts}. Let one of them report: look for an image that "
        "was copied with its host name, and for two collectors on one VM"
    )


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEVER = float("-inf")
"""The time of a place in a ring that holds no reading."""

_BLOCK_ROWS = 2048
"""Rows folded together: their intermediate arrays stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class BinFold:
    """The readings in the bin (start, end], per row: their number and their mean (0 where there are none).

    Both arrays have one more place than there are rows, empty, so that row -1 (a series that does not exist) has
    no readings.
    """

    start: float
    end: float
    counts: Ints
    means: Floats

    def at(self, rows: Ints) -> tuple[Ints, Floats]:
        """Return counts and means of these rows; rows that came after the fold, and -1, have no readings."""
        known = np.where(rows < self.counts.size - 1, rows, -1)
        return self.counts[known], self.means[known]


def fold_rings(times: Floats, values: Floats, start: float, end: float) -> BinFold:
    """Fold rings of shape (rows, depth) over (start, end]; an empty place has time `NEVER` and a finite value."""
    rows = times.shape[0]
    counts = np.zeros(rows + 1, dtype=np.int64)
    means = np.zeros(rows + 1, dtype=np.float64)
    for first in range(0, rows, _BLOCK_ROWS):
        block = slice(first, min(first + _BLOCK_ROWS, rows))
        inside = times[block] > start
        inside &= times[block] <= end
        counted = np.count_nonzero(inside, axis=1)
        totals = np.einsum("ij,ij->i", values[block], inside)
        counts[block] = counted
        means[block] = totals / np.maximum(counted, 1)
    return BinFold(start, end, counts, means)


def first_times(times: Floats) -> Floats:
    """Return the earliest reading's time of each ring of shape (rows, depth); +inf where there is none."""
    earliest: Floats = np.where(times > NEVER, times, np.inf).min(axis=1, initial=np.inf)
    return earliest


def latest_values(times: Floats, values: Floats, until: float) -> tuple[Floats, Floats]:
    """Return time and value of each ring's newest reading at or before `until`; `NEVER` and nan where there is none."""
    if not times.size:
        return np.empty(0), np.empty(0)
    seen = np.where(times <= until, times, NEVER)
    place = seen.argmax(axis=1)
    row = np.arange(times.shape[0])
    at: Floats = seen[row, place]
    return at, np.where(at > NEVER, values[row, place], np.nan)
