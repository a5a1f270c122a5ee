"""What is remembered per VM between minutes: first seen, first reported, and since when it has been idle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_FIRST_SEATS = 16


class GroupRoster:
    """One group's VMs, each in a seat of parallel arrays; a VM that the cloud no longer shows loses its seat.

    It lives in memory only: after a restart it is rebuilt from the cloud's launch times and from what the VMs report.
    Times are seconds since the epoch, nan where unknown.
    """

    def __init__(self) -> None:
        self._seats: dict[str, int] = {}
        self._free: list[int] = []
        self._first_seen = np.full(_FIRST_SEATS, np.nan)
        self._warm_since = np.full(_FIRST_SEATS, np.nan)
        self._idle_since = np.full(_FIRST_SEATS, np.nan)
        self._missing_since: list[float] = []
        self._arrived = 0
        self._not_before = np.full(_FIRST_SEATS, np.nan)
        self._seated_at: float | None = None

    @property
    def vms(self) -> tuple[str, ...]:
        """The VMs seen at the last call of `seat`."""
        return tuple(self._seats)

    def seat(self, vms: Sequence[str], now: float) -> Ints:
        """Return the seats of these VMs; new ones are first seen now, those not named are forgotten."""
        before, self._seated_at = self._seated_at, now
        seats = [self._seats.get(vm, -1) for vm in vms]
        self._arrived = seats.count(-1)
        for position, seat in enumerate(seats):
            if seat < 0:
                seats[position] = self._take_seat(vms[position], now, math.nan if before is None else before)
        if len(self._seats) > len(seats):
            for vm in self._seats.keys() - set(vms):
                self._free.append(self._seats.pop(vm))
        return np.array(seats, dtype=np.int64)

    def _take_seat(self, vm: str, now: float, not_before: float) -> int:
        known = self._seats.get(vm)
        if known is not None:
            return known
        if not self._free and len(self._seats) == self._first_seen.size:
            more = np.full(self._first_seen.size, np.nan)
            self._first_seen = np.concatenate([self._first_seen, more])
            self._warm_since = np.concatenate([self._warm_since, more])
            self._idle_since = np.concatenate([self._idle_since, more])
            self._not_before = np.concatenate([self._not_before, more])
        seat = self._free.pop() if self._free else len(self._seats)
        self._seats[vm] = seat
        self._first_seen[seat], self._warm_since[seat], self._idle_since[seat] = now, np.nan, np.nan
        self._not_before[seat] = not_before
        return seat

    def since(self, seats: Ints, launched: Floats) -> Floats:
        """Return since when each VM exists: as the cloud says, where that agrees with what was seen.

        launched: the cloud's launch times, nan where unknown (first seen counts then). A VM is no younger than when it
        was first seen, and one that was not there at an earlier call no older than that call: the cloud's clock and
        ours may differ, and a VM just ordered must not look overdue because ours was set.
        """
        first_seen = self._first_seen[seats]
        known = np.fmin(np.fmax(launched, self._not_before[seats]), first_seen)
        return np.where(np.isnan(launched), first_seen, known)

    def clock_stepped(self, step_s: float) -> None:
        """Carry what is remembered over a step of the wall clock."""
        for times in (self._first_seen, self._warm_since, self._idle_since, self._not_before):
            times += step_s
        self._missing_since = [since + step_s for since in self._missing_since]
        if self._seated_at is not None:
            self._seated_at += step_s

    def warm_since(self, seats: Ints) -> Floats:
        """When each VM first reported, nan while it has not."""
        return self._warm_since[seats]

    def warmed(self, seats: Ints, at: Floats) -> None:
        """Note when these VMs first reported."""
        self._warm_since[seats] = at

    def idle_since(self, seats: Ints, busy: Mask, idle: Mask, start: float) -> Floats:
        """Note which VMs were busy and which idle over the bin that began at `start`; return since when each is idle.

        A VM that is neither is one whose busy cores are not known: it does not count as idle, and starts anew when it
        is seen again.
        """
        since = self._idle_since[seats]
        since = np.where(idle & ~busy, np.where(np.isnan(since), start, np.minimum(since, start)), np.nan)
        self._idle_since[seats] = since
        return since

    def missing_since(self, missing: int, now: float) -> Floats:
        """Note how many VMs the group wants and does not have; return since when each of them is missing.

        Those missing longest are taken to be the ones that arrived with the last `seat`.
        """
        still = self._missing_since[self._arrived :]
        still = still[-missing:] if missing > 0 else []
        self._arrived = 0
        self._missing_since = [min(since, now) for since in still] + [now] * (missing - len(still))
        return np.array(self._missing_since, dtype=np.float64)
