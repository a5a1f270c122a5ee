"""The data of a pool's hour for learning, in a row that outlives the decision.

A row names no VM. It says which VMs came and went since the row before, and what each used, in half percents; one row a
day is whole, and lists all of them and the pool's rules. Of a pool with very many VMs a part is recorded, always the
same ones.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection, delete, func, insert, select

from agent.ledger import codec
from agent.ledger.database import Database
from agent.ledger.kept import LEARNING, StoredState
from agent.ledger.schema import learning_hours as hours
from agent.oversubscription.records import HourDecision, Vm
from agent.oversubscription.usage import VmKey
from domain.decisions import Reason
from domain.errors import LedgerError
from domain.rules.oversubscription.pool import PoolRules
from domain.units import HOUR_S, HOURS_PER_DAY

MOST_VMS: Final = 5_000
"""VMs of a pool that are recorded; of more a half, a quarter and so on is, by their numbers."""
_BITS: Final = 48
_STEPS: Final = 200
_SILENT: Final = 255
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class RecordedVm:
    """A VM as learning knows it: a number in place of its name, its subscriber, and what it asked for."""

    number: int
    subscriber: str
    cores: float
    memory_gb: float
    network_gbit: float


@dataclass(frozen=True, slots=True)
class RecordedHour:
    """An hour of a pool, in hours since the epoch.

    vms: those in the inventory at its end, by number. usage: share of the cores requested, of those that were measured.
    share: of all VMs that are recorded. hot: machines that were hot. requested, reserved: cores of all VMs. policy: the
    one that decided, see `recorded_policy`. rules: of the newest whole row.
    """

    hour: int
    vms: Mapping[int, RecordedVm]
    usage: Mapping[int, float]
    share: float
    hot: int
    requested: float
    reserved: float
    policy: str
    rules: Mapping[str, Any]


class HourRecorder:
    """Makes the rows of one pool, each on the one before; the first is whole."""

    def __init__(self) -> None:
        self._before: dict[int, RecordedVm] = {}
        self._hour: int | None = None
        self._whole_at = -HOURS_PER_DAY
        self._share = 1.0
        self._numbers: dict[VmKey, int] = {}

    def begin_anew(self) -> None:
        """Make the next row whole, as after one that was not written, or after another process led."""
        self._hour = None

    def row(
        self, rules: PoolRules, vms: Mapping[str, Vm], readings: Mapping[VmKey, float], hour: int, hot: int, policy: str
    ) -> dict[str, Any]:
        """Return the row of an hour. hot: machines that were hot in it."""
        whole = self._hour is None or hour != self._hour + 1 or hour - self._whole_at >= HOURS_PER_DAY
        if whole:
            self._share, self._whole_at = share_of(len(vms)), hour
        below = int(self._share * (1 << _BITS))
        now: dict[int, RecordedVm] = {}
        measured: dict[int, float] = {}
        known, self._numbers = self._numbers, {}
        for vm in vms.values():
            key = (vm.subscriber, vm.vm)
            number = self._numbers[key] = known[key] if key in known else number_of(rules.name, vm)
            if number < below:
                now[number] = RecordedVm(number, vm.subscriber, vm.cores, vm.memory_gb, vm.network_gbit)
                usage = readings.get(key)
                if usage is not None:
                    measured[number] = usage
        before = {} if whole else self._before
        came = [one for number, one in sorted(now.items()) if before.get(number) != one]
        names = sorted({one.subscriber for one in came})
        used = bytes(_coded(measured.get(number)) for number in sorted(now))
        body: dict[str, Any] = {
            "s": names,
            "c": [[v.number, names.index(v.subscriber), v.cores, v.memory_gb, v.network_gbit] for v in came],
            "g": sorted(before.keys() - now.keys()),
            "u": base64.b64encode(used).decode(),
            "h": hot,
            "q": [round(sum(v.cores for v in vms.values()), 3), round(sum(v.cores * v.rate for v in vms.values()), 3)],
            "p": policy,
        }
        if whole:
            body |= {"f": self._share, "r": _plain_rules(rules)}
        self._before, self._hour = now, hour
        packed = codec.pack(codec.encode_mapping(body))
        return {"pool": rules.name, "hour": hour, "whole": int(whole), "body": packed}


AT_RATES: Final = " at its rates"
"""Ends the policy of an hour in which a drift excluded some subscriber from its rule."""


def recorded_policy(policy: str, decided: HourDecision | None) -> str:
    """Return the policy of an hour by the settings and by the decision that it was lived under."""
    fallback = decided is not None and any(row.held is Reason.USAGE_DRIFTED for row in decided.subscribers)
    return policy + AT_RATES if fallback else policy


def share_of(vms: int) -> float:
    """Return the share of so many VMs that is recorded: 1, or a power of a half."""
    share = 1.0
    while vms * share > MOST_VMS:
        share /= 2.0
    return share


def number_of(pool: str, vm: Vm) -> int:
    """Return the number of a VM in the record, the same in every process."""
    text = "\0".join((pool, vm.subscriber, vm.vm))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_BITS // 8).digest(), "big")


def _coded(usage: float | None) -> int:
    return _SILENT if usage is None else min(round(usage * _STEPS), _STEPS)


def _plain_rules(rules: PoolRules) -> dict[str, Any]:
    names = ("machines", "machine_cores", "machine_memory_gb", "machine_network_gbit", "actions", "alpha", "beta")
    found = {name: getattr(rules, name) for name in (*names, "horizon_h", "timezone", "policy", "shield_budget")}
    own = {name: asdict(one) for name, one in rules.subscribers.items()}
    return {**found, "actions": list(rules.actions), "violation": rules.violation, "subscribers": own}


def append(connection: Connection, row: Mapping[str, Any]) -> None:
    """Append a row within the caller's transaction."""
    connection.execute(insert(hours), [dict(row)])


def read_hours(
    database: Database, pool: str, since: int | None = None, until: int | None = None
) -> Iterator[RecordedHour]:
    """Yield a pool's hours with since <= hour < until, in the order in which they were written.

    It reads page by page, so that a year needs no more memory than a day; LedgerError when a row is damaged. Hours
    before the first whole row are left out.
    """
    mine = hours.c.pool == pool
    first = select(func.max(hours.c.seq)).where(mine, hours.c.whole == 1, hours.c.hour <= (since or 0))
    with database.read() as connection:
        last = (connection.execute(first).scalar() or 0) - 1
    alive: dict[int, RecordedVm] | None = None
    rules: Mapping[str, Any] = {}
    share = 1.0
    while True:
        query = select(hours).where(mine, hours.c.seq > last).order_by(hours.c.seq).limit(_PAGE)
        with database.read() as connection:
            page = connection.execute(query).all()
        for row in page:
            body = codec.decode_mapping(codec.unpack(row.body))
            try:
                if row.whole:
                    alive, rules, share = {}, body["r"], float(body["f"])
                if alive is None:
                    continue
                for gone in body["g"]:
                    alive.pop(gone, None)
                for number, place, *sizes in body["c"]:
                    alive[number] = RecordedVm(number, body["s"][place], *map(float, sizes))
                used = base64.b64decode(body["u"])
                pairs = zip(sorted(alive), used, strict=True)
                usage = {number: code / _STEPS for number, code in pairs if code != _SILENT}
                found = RecordedHour(
                    *(row.hour, dict(alive), usage, share, int(body["h"])),
                    *(float(body["q"][0]), float(body["q"][1]), str(body["p"]), rules),
                )
            except (KeyError, ValueError, TypeError, IndexError) as error:
                raise LedgerError(f"hour {row.hour} of pool {pool} cannot be read ({error}): it is damaged") from error
            if (since is None or row.hour >= since) and (until is None or row.hour < until):
                yield found
        if len(page) < _PAGE:
            return
        last = page[-1].seq


def pools_of(database: Database) -> tuple[str, ...]:
    """Return the pools of which hours are recorded, by name."""
    with database.read() as connection:
        return tuple(sorted(connection.execute(select(hours.c.pool).distinct()).scalars()))


def newest_hour(database: Database, pool: str) -> int | None:
    """Return the newest hour that is recorded of a pool, None before the first."""
    with database.read() as connection:
        return connection.execute(select(func.max(hours.c.hour)).where(hours.c.pool == pool)).scalar()


def forget(connection: Connection, before: float, most: int) -> int:
    """Remove at most so many hours that ended before a time, and return how many; the oldest rows alone are read."""
    head = select(hours.c.seq, hours.c.hour).order_by(hours.c.seq).limit(most).subquery()
    limit = int(before // HOUR_S) - 1
    due = list(connection.execute(select(head.c.seq).where(head.c.hour < limit)).scalars())
    if due:
        connection.execute(delete(hours).where(hours.c.seq <= max(due), hours.c.hour < limit))
    return len(due)


# No decision rests on it: a return to an older version need not wait for its name.
HOURS_KEPT: Final = StoredState(LEARNING, forget=forget)
