"""What a table of virtual machines tells of each deployment: requests, cores ended, hours, size (specification §9.1-2).

All virtual machines of a deployment that are created at one instant are one request; the first is its initial size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from domain.errors import TraceError
from trainer.admission.fitting.vm_table import VmTable

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
COARSEST_S = 300
HOUR_S = 3600.0
SHUTDOWN_VMS = 3
"""So many machines that end at a deployment's last instant are a shutdown (specification §9.4)."""


@dataclass(frozen=True, slots=True)
class Histories:
    """One row per deployment that began inside the window, arrays (N,); hours."""

    began_h: Floats
    """From the start of the window."""
    hours: Floats
    """Lifetime inside the window."""
    initial: Counts
    """Cores of the first request."""
    scale_outs: Counts
    """Requests after the first."""
    activated: Counts
    """Cores of all requests."""
    ended: Counts
    """Cores ended inside the window."""
    core_hours: Floats
    peak: Counts
    """Most cores at a time."""
    dead: NDArray[np.bool_]
    """Whether every machine ended inside the window."""
    last_vms: Counts
    """Machines that ended at the last instant, 0 where the deployment lives on."""
    last_cores: Counts
    window_h: float
    grid_h: float
    """Step of the clock of the table."""
    truncated: int
    """Deployments left out: there when the window began, or come at its last mark."""

    def __len__(self) -> int:
        return len(self.hours)

    @property
    def extra(self) -> Counts:
        """Sum of (cores - 1) over all requests, the first too."""
        return self.activated - self.scale_outs - 1

    @property
    def shut_down(self) -> NDArray[np.bool_]:
        """Whether the last instant ended three machines or more."""
        return self.dead & (self.last_vms >= SHUTDOWN_VMS)

    def some(self, chosen: NDArray[np.bool_] | Counts) -> Histories:
        """Return the deployments chosen by a mask or by their numbers."""
        names = [field.name for field in fields(self) if field.name not in ("window_h", "grid_h", "truncated")]
        columns = {name: getattr(self, name)[chosen] for name in names}
        return Histories(**columns, window_h=self.window_h, grid_h=self.grid_h, truncated=self.truncated)


def histories_of(table: VmTable) -> Histories:
    """Return what became of each deployment of a table (specification §9.1-2).

    The window ends at the last mark in the table, where machines that still run have their end. A machine that ends in
    the step of the clock in which it began is taken to have run for half a step. Deployments that were there at time 0
    are left out: they are the longer-lived of those that began before. Raises TraceError when none is left.
    """
    end_s = int(max(table.created_s.max(), table.deleted_s.max()))
    step_s = int(np.gcd(np.gcd.reduce(table.created_s), np.gcd.reduce(table.deleted_s)))
    step_s = min(max(step_s, 1), COARSEST_S)
    first = np.full(table.deployments, np.iinfo(np.int64).max)
    np.minimum.at(first, table.deployment, table.created_s)
    # Without machines a deployment cannot be known of, and one that begins at the end has no time to tell anything.
    kept = (first > 0) & (first < end_s)
    if not kept.any():
        raise TraceError("TRACE", len(first), "give a table with deployments that begin after time 0")
    number = np.cumsum(kept) - 1
    rows = np.flatnonzero(kept[table.deployment])
    owner = number[table.deployment[rows]]
    created, deleted, cores = table.created_s[rows], table.deleted_s[rows], table.cores[rows]
    count = int(kept.sum())
    alive = deleted >= end_s
    hours = np.where(deleted > created, deleted - created, 0.5 * step_s) / HOUR_S

    def added(weights: NDArray[np.generic] | None) -> Floats:
        return np.bincount(owner, weights=weights, minlength=count).astype(np.float64)

    initial, requests = _requests(owner, created, cores, count)
    last = np.zeros(count, dtype=np.int64)
    np.maximum.at(last, owner, deleted)
    dead = last < end_s
    at_last = (deleted == last[owner]) & dead[owner]
    began = first[kept]
    lived = np.where(dead, np.where(last > began, last - began, 0.5 * step_s), end_s - began) / HOUR_S
    return Histories(
        began_h=began / HOUR_S,
        hours=lived,
        initial=initial,
        scale_outs=requests - 1,
        activated=added(cores).astype(np.int64),
        ended=added(np.where(alive, 0, cores)).astype(np.int64),
        core_hours=added(cores * hours),
        peak=_peaks(owner, created, deleted, cores, count),
        dead=dead,
        last_vms=added(at_last).astype(np.int64),
        last_cores=added(np.where(at_last, cores, 0)).astype(np.int64),
        window_h=end_s / HOUR_S,
        grid_h=step_s / HOUR_S,
        truncated=int((~kept).sum()),
    )


def _requests(owner: Counts, created: Counts, cores: Counts, count: int) -> tuple[Counts, Counts]:
    """Return the cores of the first request and the number of requests of each deployment."""
    key = (owner.astype(np.int64) << 32) | created
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    sizes = np.add.reduceat(cores[order], starts)
    of = owner[order][starts]
    requests = np.bincount(of, minlength=count)
    return sizes[np.cumsum(requests) - requests], requests


def _peaks(owner: Counts, created: Counts, deleted: Counts, cores: Counts, count: int) -> Counts:
    """Return the most cores at a time; at one instant machines end before others begin."""
    # In half seconds, so that a machine that ends at once ends after it began.
    starts, ends = 2 * created + 1, np.where(deleted > created, 2 * deleted, 2 * created + 2)
    key = (np.concatenate((owner, owner)).astype(np.int64) << 34) | np.concatenate((starts, ends))
    order = np.argsort(key, kind="stable")
    change = np.concatenate((cores, -cores))[order]
    total = np.cumsum(change)
    rows = 2 * np.bincount(owner, minlength=count)
    begins = np.cumsum(rows) - rows
    # Every machine comes and goes, so that the running total is 0 where the next deployment begins.
    peaks: Counts = np.maximum.reduceat(total, begins)
    return peaks
