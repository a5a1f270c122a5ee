"""What a ledger recorded of a pool, as a scenario folder that `trimtab evaluate|tune|train oversubscription` read.

A week is the pool's horizon, from a midnight of its wall clock on. Its requests are the VMs that came in it; those that
were there at its begin are its warm start. The usage profiles are fitted to what was measured in all weeks of the
folder. A VM is there from the first hour at whose end the inventory listed it to the last one.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from agent.kernel.unfinished import unfinished
from agent.ledger import Ledger
from agent.oversubscription import recorded_hours
from agent.oversubscription.arrays import unclipped
from agent.oversubscription.recorded_hours import RecordedHour, RecordedVm, read_hours
from domain.errors import BadInput, SampleRejected, TraceError
from domain.rules.oversubscription.rates import ACTIONS, check_actions, violation_hours
from domain.rules.oversubscription.usage import clean_sample
from domain.units import HOUR_S, HOURS_PER_DAY
from simulator.oversubscription.scenario import PROFILE_COLUMNS, REQUEST_COLUMNS
from simulator.workloads.tables import USAGE_FIELDS, rows_of_table
from trainer.learning.ledgers import LedgerRows, NoRecord, check_known, none_in_span, reading

LEAST_HOURS: Final = 0.75
"""A week of which fewer of its hours are recorded is left out."""
NETWORK_GBIT: Final = 100.0
BETA: Final = 0.6
"""A machine of a table of usage, and the share of its cores in use from which it is hot."""
_LEVEL: Final = 1
Floats = NDArray[np.float64]
OnTime = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """The record of one pool; `hours` reads the ledger anew each time. source: of the ledger, without a password.

    since, until: hours since the epoch, None for no limit. rules: of the newest hour, as recorded. policy: the one that
    decided then.
    """

    pool: str
    hours: Iterable[RecordedHour]
    rules: Mapping[str, Any]
    policy: str
    source: str

    @property
    def horizon_h(self) -> int:
        """Hours of a week."""
        return int(self.rules["horizon_h"])

    @property
    def subscribers(self) -> tuple[str, ...]:
        """Those of the rules, by name."""
        return tuple(sorted(self.rules["subscribers"]))


def read_pool(source: str, pool: str, since: float | None = None, until: float | None = None) -> PoolRecord:
    """Return the record of a pool between two times, epoch seconds.

    source: a SQLite file, or the URL of a ledger. BadInput for a pool that the ledger does not know, or without an hour
    in the span; LedgerUnavailable when the ledger cannot be read.
    """
    first, end = (None if at is None else int(at // HOUR_S) for at in (since, until))
    with reading(source) as ledger:
        place, last = ledger.place, _newest_hour(ledger, pool)
        until_h = last + 1 if end is None else min(end, last + 1)
        newest = deque(_hours(ledger, pool, max(first or 0, until_h - HOURS_PER_DAY), end), maxlen=1)
    if not newest:
        raise none_in_span("pool", pool, place, "hour")
    hours = LedgerRows(source, lambda ledger: _hours(ledger, pool, first, end))
    return PoolRecord(pool, hours, newest[0].rules, newest[0].policy, place)


def table_of_usage(
    path: Path,
    columns: Mapping[str, str],
    *,
    machines: int,
    machine: tuple[float, float],
    horizon_h: int = 120,
    timezone: str = "UTC",
    scale: float = 1.0,
) -> PoolRecord:
    """Return a table of usage as the record of a pool, named after the file.

    Fields are time, vm, cores, usage (share of its cores, times `scale`), subscriber, memory in GB and network in
    Gbit/s. A VM is there from the hour of its first row to that of its last. machine: cores and GB of each machine.
    Raises BadInput and TraceError.
    """
    lives: dict[str, list[int]] = {}
    vms: dict[str, RecordedVm] = {}
    readings: dict[int, dict[int, list[float]]] = {}
    for row in rows_of_table(path, columns, USAGE_FIELDS):
        hour, name = int(row.time_s("time") // HOUR_S), row.text("vm")
        if name not in vms:
            sizes = row.number("cores"), row.number("memory"), row.number("network")
            vms[name] = RecordedVm(len(vms), row.text("subscriber", "all"), *sizes)
        span = lives.setdefault(name, [hour, hour])
        span[:] = min(span[0], hour), max(span[1], hour)
        try:
            share = clean_sample(scale * row.number("usage"))
        except SampleRejected as error:
            raise TraceError(f"{row.place}: usage", row.text("usage"), f"{error.remedy}, or --usage-scale") from None
        readings.setdefault(hour, {}).setdefault(vms[name].number, []).append(share)
    if not vms:
        raise BadInput("table", str(path), "it has no row")
    rules = {
        "subscribers": sorted({vm.subscriber for vm in vms.values()}),
        "horizon_h": horizon_h,
        "timezone": timezone,
        "machines": machines,
        "machine_cores": machine[0],
        "machine_memory_gb": machine[1],
        "machine_network_gbit": NETWORK_GBIT,
        "beta": BETA,
        "violation": violation_hours(horizon_h),
        "actions": ACTIONS,
    }

    def at(hour: int) -> RecordedHour:
        there = {vms[name].number: vms[name] for name, (first, last) in lives.items() if first <= hour <= last}
        usage = {number: sum(found) / len(found) for number, found in readings.get(hour, {}).items()}
        cores = sum(vm.cores for vm in there.values())
        return RecordedHour(hour, there, usage, 1.0, 0, cores, cores, "none", rules)

    name = path.name.partition(".")[0]
    return PoolRecord(name, [at(hour) for hour in range(min(readings), max(readings) + 1)], rules, "none", path.name)


def newest_of(source: str, pool: str) -> float:
    """Return the end of the newest hour that is recorded of a pool, epoch seconds; BadInput before the first."""
    with reading(source) as ledger:
        return (_newest_hour(ledger, pool) + 1) * HOUR_S


def _newest_hour(ledger: Ledger, pool: str) -> int:
    last = recorded_hours.newest_hour(ledger.database, pool)
    check_known("pool", pool, recorded_hours.pools_of(ledger.database), ledger, "hour of a pool")
    assert last is not None, "a pool is known by its hours"
    return last


def _hours(ledger: Ledger, pool: str, since: int | None, until: int | None) -> Iterator[RecordedHour]:
    """Yield the hours of a pool; one that was decided twice comes once."""
    newest = -1
    for hour in read_hours(ledger.database, pool, since, until):
        if hour.hour > newest:
            newest = hour.hour
            yield hour


@dataclass(slots=True)
class _Life:
    """A VM from its first hour to the one in which it was gone, None while it is there."""

    vm: RecordedVm
    first: int
    gone: int | None = None


@dataclass(slots=True)
class _Week:
    """A week that is being read: its lives, usage by VM, and what was counted."""

    name: str
    begin: int
    lives: dict[int, list[_Life]] = field(default_factory=dict)
    usage: list[tuple[_Life, int, float]] = field(default_factory=list)
    hours: int = 0
    hot_hours: int = 0
    requested: float = 0.0
    reserved: float = 0.0
    policies: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Sums:
    """Count, sum and sum of squares of usage by subscriber and hour of the day, (N, 24) each."""

    count: Floats
    total: Floats
    squares: Floats

    @classmethod
    def of(cls, subscribers: int) -> Sums:
        """Return sums of nothing."""
        return cls(*(np.zeros((subscribers, HOURS_PER_DAY)) for _ in range(3)))

    def profile(self) -> tuple[Floats, Floats]:
        """Return mu and sd before clipping, (N, 24), nan where nothing was measured.

        A subscriber without any has those of all together.
        """
        silent = self.count.sum(axis=1, keepdims=True) == 0.0
        count, total, squares = (
            np.where(silent, part.sum(axis=0), part) for part in (self.count, self.total, self.squares)
        )
        some = np.maximum(count, 1.0)
        mean = total / some
        variance = np.maximum(squares / some - mean * mean, 0.0) * some / np.maximum(some - 1.0, 1.0)
        mu, sd = unclipped(mean, variance)
        known = count > 0.0
        return np.where(known, np.clip(mu, 0.0, 1.0), np.nan), np.where(known, np.clip(sd, 0.0, 1.0), np.nan)


class ScenarioWriter:
    """Writes hours as the weeks of a scenario into a folder that is not in use yet.

    A week is written one horizon after its end, or with the record: by then it is known of each of its VMs whether it
    lives for a horizon, and longer lives make no difference to a week.
    """

    def __init__(self, recorded: PoolRecord, folder: Path, weeks: range | None = None) -> None:
        """weeks: the numbers of those that are written, by the order of the record; None for all."""
        self._recorded, self._folder, self._wanted = recorded, folder, weeks
        self._zone = ZoneInfo(str(recorded.rules["timezone"]))
        self._place = {name: n for n, name in enumerate(recorded.subscribers)}
        self._alive: dict[int, _Life] = {}
        self._open: list[_Week] = []
        self._begin: int | None = None
        self._before: int | None = None
        self.sums = Sums.of(len(self._place))
        self.weeks: dict[str, dict[str, Any]] = {}
        self.gaps: list[tuple[int, int]] = []
        self.unknown = 0
        self.share = 1.0

    def take(self, hour: RecordedHour) -> None:
        """Take in the next hour."""
        horizon = self._recorded.horizon_h
        if self._before is not None and hour.hour > self._before + 1:
            self.gaps.append((self._before + 1, hour.hour))
        self._before, self.share = hour.hour, min(self.share, hour.share)
        if self._begin is None:
            self._begin = self._midnight(hour.hour)
        number = (hour.hour - self._begin) // horizon
        if hour.hour >= self._begin and (not self._open or self._open[-1].begin < self._begin + number * horizon):
            self._open.append(_Week(f"w{number}", self._begin + number * horizon))
        known = {n: vm for n, vm in hour.vms.items() if vm.subscriber in self._place}
        self.unknown += len(hour.vms) - len(known)
        for gone in [n for n, life in self._alive.items() if known.get(n) != life.vm]:
            self._alive.pop(gone).gone = hour.hour
        for n, vm in known.items():
            if n not in self._alive:
                self._alive[n] = _Life(vm, hour.hour)
        if self._open and self._open[-1].begin <= hour.hour:
            self._count(self._open[-1], hour)
        while self._open and hour.hour >= self._open[0].begin + 2 * horizon:
            self._write(self._open.pop(0))

    def finish(self) -> None:
        """Write what is still open, the profiles and the constants; BadInput without a week that is recorded."""
        for week in self._open:
            self._write(week)
        self._open = []
        recorded = self._recorded
        if not self.weeks:
            why = f"no week of {recorded.horizon_h} h has {LEAST_HOURS:.0%} of its hours recorded"
            raise NoRecord("pool", recorded.pool, f"{why}: give a longer span")
        mu, sd = self.sums.profile()
        rows = [
            f"{n},{hour},{'' if np.isnan(mu[n, hour]) else f'{mu[n, hour]:.6f}'},"
            f"{'' if np.isnan(sd[n, hour]) else f'{sd[n, hour]:.6f}'}"
            for n in range(len(mu))
            for hour in range(HOURS_PER_DAY)
        ]
        name, rules = recorded.pool, recorded.rules
        (self._folder / f"{name}_profile.csv").write_text("\n".join([",".join(PROFILE_COLUMNS), *rows]) + "\n", "ascii")
        reserved = sum(week["reserved"] for week in self.weeks.values())
        requested = sum(week["requested"] for week in self.weeks.values())
        constants = {
            "n_subscribers": len(self._place),
            "subscribers": list(self._place),
            "pms": max(round(rules["machines"] * self.share), 1),
            "pm_cores": rules["machine_cores"],
            "pm_mem_gb": rules["machine_memory_gb"],
            "pm_net_gbps": rules["machine_network_gbit"],
            "beta": rules["beta"],
            "horizon_h": recorded.horizon_h,
            "delta_count": rules["violation"],
            "actions": list(check_actions(rules["actions"])),
            "warm_prefill_rate": round(min(max(reserved / requested, 0.01), 1.0), 4) if requested else 1.0,
            "recorded": {
                "pool": name,
                "policy": recorded.policy,
                "ledger": recorded.source,
                "share_of_vms": self.share,
                "unknown_vm_hours": self.unknown,
                "gaps": [[_time(since), _time(until)] for since, until in self.gaps],
                "weeks": self.weeks,
            },
        }
        (self._folder / f"{name}.json").write_text(json.dumps(constants, indent=1) + "\n", "utf-8")

    def _midnight(self, hour: int) -> int:
        """Return the first hour from this one on at which a day of the pool begins."""
        while self._clock(hour):
            hour += 1
        return hour

    def _clock(self, hour: int) -> int:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)).astimezone(self._zone).hour

    def _count(self, week: _Week, hour: RecordedHour) -> None:
        week.hours += 1
        week.hot_hours += hour.hot > 0
        week.requested += hour.requested
        week.reserved += hour.reserved
        week.policies.add(hour.policy)
        wanted = self._wanted is None or int(week.name[1:]) in self._wanted
        clock = self._clock(hour.hour)
        for n, life in self._alive.items():
            lives = week.lives.setdefault(n, [])
            if not lives or lives[-1] is not life:
                lives.append(life)
            usage = hour.usage.get(n)
            if usage is not None and wanted:
                week.usage.append((life, hour.hour - week.begin, usage))
                at = self._place[life.vm.subscriber], clock
                self.sums.count[at] += 1.0
                self.sums.total[at] += usage
                self.sums.squares[at] += usage * usage

    def _write(self, week: _Week) -> None:
        horizon = self._recorded.horizon_h
        if week.hours < LEAST_HOURS * horizon or (self._wanted is not None and int(week.name[1:]) not in self._wanted):
            return
        name, ids, rows = f"{self._recorded.pool}_{week.name}", dict[int, int](), []
        for life in sorted((life for lives in week.lives.values() for life in lives), key=_first):
            vm, arrival = life.vm, life.first - week.begin
            # Of one that is there when the record ends, no more is known than that it outlives it.
            end = life.gone if life.gone is not None else (self._before or 0) + 1 + horizon
            warm = arrival < 0
            ids[id(life)] = len(ids)
            sizes = f"{vm.cores:g},{vm.memory_gb:g},{vm.network_gbit:g}"
            span = f"{arrival},{max(end - week.begin, arrival + 1)},{int(warm)}"
            rows.append(f"{len(ids) - 1},{self._place[vm.subscriber]},{sizes},{span}")
        _pack(self._folder / f"{name}_requests.csv.gz", [",".join(REQUEST_COLUMNS), *rows])
        usage = [f"{ids[id(life)]},{hour},{share:.3f}" for life, hour, share in week.usage]
        _pack(self._folder / f"{name}_usage.csv.gz", ["id,hour,usage", *usage])
        self.weeks[week.name] = {
            "from": _time(week.begin),
            "hours": week.hours,
            "vms": len(rows),
            "hot_hours": week.hot_hours,
            "requested": round(week.requested, 1),
            "reserved": round(week.reserved, 1),
            "policies": sorted(week.policies),
        }


def _first(life: _Life) -> tuple[int, int]:
    return life.first, life.vm.number


def _pack(path: Path, lines: list[str]) -> None:
    # Without time in its head the same record gives the same file.
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode("ascii"), _LEVEL, mtime=0))


def _time(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR_S, UTC).isoformat()


def export_scenario(
    recorded: PoolRecord, folder: Path, weeks: range | None = None, on_time: OnTime = lambda at: None
) -> dict[str, Any]:
    """Write the record of a pool as a scenario folder, whole or not at all; return what `POOL.json` holds.

    weeks: the numbers of those that are written, None for all. A folder that is there is replaced. BadInput without a
    week that is recorded.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(folder, is_folder=True) as partial:
        writer = ScenarioWriter(recorded, partial, weeks)
        for hour in recorded.hours:
            writer.take(hour)
            if hour.hour % HOURS_PER_DAY == 0:
                on_time(hour.hour * HOUR_S)
        writer.finish()
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    found: dict[str, Any] = json.loads((folder / f"{recorded.pool}.json").read_bytes())
    return found
