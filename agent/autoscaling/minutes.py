"""What learning needs of a fleet's minute, in a row of its own that is kept longer than the decision.

Settings that many minutes share (fleet, policy, limits) stand in a context, once. No VM is named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Row, Select, delete, insert, select

from agent.ledger import codec
from agent.ledger.database import Database
from agent.ledger.kept import LEARNING, StoredState
from agent.ledger.schema import learning_contexts as contexts
from agent.ledger.schema import learning_minutes as minutes
from agent.rails.base import RailLimits
from domain.decisions import Decision, Intent, Mode, Outcome, Reason
from domain.errors import LedgerError
from domain.fleet import Fleet
from domain.snapshot import Terms
from domain.units import MINUTE_S

if TYPE_CHECKING:
    from agent.autoscaling.decide import DecisionInputs

CLOUD, LATE, CLOCK_SET = "cloud", "late", "clock_set"
INPUTS: Final = ("cpu", "ram", "queue", CLOUD, LATE, CLOCK_SET)
"""What may be wrong with a minute, by bit: an input absent, groups not read, the count of jobs late, the clock set."""

_PAGE: Final = 4000
_LOOKED_BACK: Final = 60
_CONTEXT_BITS: Final = 47
"""SQLite stores such a number in six bytes."""


@dataclass(frozen=True, slots=True)
class JobLengths:
    """Core-seconds of a job: the mean, and quantiles where the job source reports them."""

    mean: float
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None

    @property
    def quantiles(self) -> tuple[float, float, float, float] | None:
        """The quantiles at 10, 50, 90 and 99 %, None where they are not reported."""
        if self.p10 is None or self.p50 is None or self.p90 is None or self.p99 is None:
            return None
        return self.p10, self.p50, self.p90, self.p99


@dataclass(frozen=True, slots=True)
class Boot:
    """The boot of one VM: the position of its group, and seconds from its launch by AWS to its first report."""

    group: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MinuteMeasurements:
    """What was measured of a minute beside its snapshot; None where nothing was.

    finished: jobs, finished_core_s: their work. waiting: jobs, the mean over the minute. lengths: of jobs. boots: of
    the VMs that first reported. lost_core_s: work under way on VMs that are gone. busy_cores: by group,
    a VM that came in the minute for its part of it. interrupted, refused: per position of a group, spot notices and
    requests that AWS had no capacity for. clock_set: whether the clock was set since the minute before.
    """

    finished: int | None = None
    finished_core_s: float | None = None
    waiting: float | None = None
    lengths: JobLengths | None = None
    boots: tuple[Boot, ...] = ()
    lost_core_s: float = 0.0
    sample_interval_s: float = 10.0
    busy_cores: tuple[float | None, ...] = ()
    interrupted: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[int, int] = field(default_factory=dict)
    clock_set: bool = False


@dataclass(frozen=True, slots=True)
class MinuteContext:
    """What a minute was decided under: its fleet (without its queue), the policy that decided, and the settings.

    terms: None where the fleet's groups could not be read. sample_interval_s: how often VMs report.
    """

    fleet: Fleet
    policy: str
    mode: Mode
    limits: RailLimits
    terms: Terms | None = None
    sample_interval_s: float = 10.0


@dataclass(frozen=True, slots=True)
class RecordedMinute:
    """One recorded minute of a fleet; vectors are in the order of its groups, empty where these were not read.

    end_s: its end, epoch seconds. epoch: of the leader. submitted, finished, running: jobs; waiting: jobs, the mean
    over the minute. lengths: of jobs, as last reported. requested, warm, draining: VMs. busy_cores: mean over the
    minute. boots: None in older ledgers, where they were not measured. interrupted: spot notices. refused: requests
    that AWS had no capacity for. lost_core_s: work lost with VMs, as far as known. absent: names of INPUTS.
    finished_core_s: the work of the jobs that finished in it, None where the job source does not report it.
    """

    end_s: float
    epoch: int
    context: MinuteContext
    submitted: int | None = None
    finished: int | None = None
    waiting: float | None = None
    running: int | None = None
    lengths: JobLengths | None = None
    requested: tuple[int, ...] = ()
    warm: tuple[int, ...] = ()
    draining: tuple[int, ...] = ()
    busy_cores: tuple[float | None, ...] = ()
    boots: tuple[Boot, ...] | None = ()
    interrupted: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[int, int] = field(default_factory=dict)
    lost_core_s: float = 0.0
    absent: tuple[str, ...] = ()
    finished_core_s: float | None = None

    @property
    def policy(self) -> str:
        """The policy that decided."""
        return self.context.policy


def minute_of(inputs: DecisionInputs, made: Decision, measured: MinuteMeasurements | None) -> RecordedMinute:
    """Return what is recorded of a decision's minute; measured: None where only its inputs are known."""
    snapshot, more = inputs.snapshot, measured or MinuteMeasurements()
    policy = made.proposal.policy or inputs.policy
    terms = None if snapshot is None else snapshot.terms
    context = _context(inputs.fleet, policy, inputs.mode, inputs.limits, terms, more.sample_interval_s)
    wrong = [CLOCK_SET] if more.clock_set else []
    boots = None if measured is None else more.boots
    if snapshot is None:
        end_s = inputs.now // MINUTE_S * MINUTE_S
        known = RecordedMinute(end_s, inputs.epoch, context, boots=boots, absent=(CLOUD, *wrong))
        return replace(known, interrupted=more.interrupted, refused=more.refused)
    queue, groups = snapshot.queue, snapshot.groups
    if queue is not None and queue.submitted_is_late:
        wrong.insert(0, LATE)
    lengths = more.lengths
    if lengths is None and queue is not None and queue.job_core_s is not None:
        lengths = JobLengths(queue.job_core_s)
    waiting = more.waiting if more.waiting is not None or queue is None else float(queue.waiting)
    return RecordedMinute(
        snapshot.bin_end,
        inputs.epoch,
        context,
        submitted=None if queue is None else queue.submitted_recent,
        finished=more.finished,
        waiting=None if queue is None else waiting,
        running=None if queue is None else queue.running,
        lengths=lengths,
        requested=tuple(group.requested for group in groups),
        warm=tuple(group.warm for group in groups),
        draining=tuple(group.draining for group in groups),
        busy_cores=more.busy_cores or tuple(group.busy_cores for group in groups),
        boots=boots,
        interrupted=more.interrupted,
        refused=more.refused,
        lost_core_s=more.lost_core_s,
        absent=(*snapshot.absent, *wrong),
        finished_core_s=more.finished_core_s,
    )


@lru_cache(maxsize=1024)
def _context(
    fleet: Fleet, policy: str, mode: Mode, limits: RailLimits, terms: Terms | None, sample_interval_s: float
) -> MinuteContext:
    return MinuteContext(replace(fleet, queue_url=None), policy, mode, limits, terms, sample_interval_s)


@lru_cache(maxsize=1024)
def _stored_context(context: MinuteContext) -> tuple[int, bytes]:
    """Return number and stored body of a context; the same content has the same number in every ledger."""
    body = codec.encode(context)
    digest = hashlib.sha256(body).digest()
    return int.from_bytes(digest[:6], "big") >> (48 - _CONTEXT_BITS), codec.pack(body)


# Short keys: j jobs (submitted, finished, waiting, running); l lengths (mean, quantiles); g requested, warm and busy
# cores, group by group; d draining; f work of finished jobs; b boots; n true where boots were not measured;
# i interruptions, r refusals (group, count); w work lost; x what is wrong, by bit.


def encoded(minute: RecordedMinute) -> bytes:
    """Return a minute's stored body, JSON with short keys; what is zero or absent is left out."""
    parts = []
    if minute.submitted is not None:
        counts = (minute.submitted, minute.finished, minute.waiting, minute.running)
        parts.append(f'"j":[{",".join(map(_number, counts))}]')
    lengths = minute.lengths
    if lengths is not None:
        parts.append(f'"l":[{",".join(map(_number, (lengths.mean, *(lengths.quantiles or ()))))}]')
    if minute.finished_core_s:
        parts.append(f'"f":{_number(minute.finished_core_s)}')
    if minute.requested:
        each = zip(minute.requested, minute.warm, map(_number, minute.busy_cores), strict=True)
        parts.append(f'"g":[{",".join([f"{requested},{warm},{busy}" for requested, warm, busy in each])}]')
    if any(minute.draining):
        parts.append(f'"d":[{",".join(map(str, minute.draining))}]')
    if minute.boots is None:
        parts.append('"n":true')
    elif minute.boots:
        parts.append(f'"b":[{",".join([f"[{boot.group},{_number(boot.seconds)}]" for boot in minute.boots])}]')
    for key, found in (("i", minute.interrupted), ("r", minute.refused)):
        if found:
            parts.append(f'"{key}":[{",".join([f"[{group},{count}]" for group, count in sorted(found.items())])}]')
    if minute.lost_core_s > 0.0:
        parts.append(f'"w":{_number(minute.lost_core_s)}')
    if minute.absent:
        parts.append(f'"x":{sum(1 << INPUTS.index(name) for name in minute.absent if name in INPUTS)}')
    return f"{{{','.join(parts)}}}".encode()


def _number(value: float | None) -> str:
    """Return a number as JSON with four digits, whole numbers whole."""
    if value is None:
        return "null"
    return str(value) if isinstance(value, int) else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


@lru_cache(maxsize=1 << len(INPUTS))
def _wrong(mask: int) -> tuple[str, ...]:
    return tuple(name for bit, name in enumerate(INPUTS) if mask >> bit & 1)


_DECODE: Final = json.JSONDecoder().decode
_NOTHING: Final[Mapping[int, int]] = {}


def decoded(end_s: float, epoch: int, context: MinuteContext, stored: bytes) -> RecordedMinute:
    """Return the minute of a stored body; LedgerError when it is damaged."""
    try:
        body = _DECODE(stored.decode())
        get = body.get
        submitted, finished, waiting, running = get("j") or (None, None, None, None)
        lengths, flat = get("l"), get("g") or ()
        requested = tuple(flat[0::3])
        interrupted, refused = get("i"), get("r")
        return RecordedMinute(
            end_s,
            epoch,
            context,
            submitted,
            finished,
            waiting,
            running,
            JobLengths(*lengths) if lengths else None,
            requested,
            tuple(flat[1::3]),
            tuple(get("d") or (0,) * len(requested)),
            tuple(flat[2::3]),
            None if get("n") else tuple(Boot(*boot) for boot in get("b") or ()),
            dict(interrupted) if interrupted else _NOTHING,
            dict(refused) if refused else _NOTHING,
            float(get("w") or 0.0),
            _wrong(get("x") or 0),
            get("f"),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise LedgerError(f"a recorded minute cannot be read ({error}): it is damaged") from error


class Rows:
    """Minutes encoded before any lock is taken; a context is written with its first minute."""

    def __init__(self, recorded: Iterable[RecordedMinute]) -> None:
        self._minutes: list[dict[str, Any]] = []
        self._contexts: dict[int, dict[str, Any]] = {}
        for minute in recorded:
            number, body = _stored_context(minute.context)
            name, end = minute.context.fleet.name, round(minute.end_s)
            self._contexts[number] = {"context": number, "fleet": name, "at": float(end), "body": body}
            self._minutes.append(
                {"fleet": name, "minute": end, "epoch": minute.epoch, "context": number, "body": encoded(minute)}
            )

    @property
    def contexts(self) -> Set[int]:
        """The numbers of the contexts that the minutes refer to."""
        return self._contexts.keys()

    def write(self, connection: Connection, known: Set[int]) -> None:
        """Append them within the caller's transaction; known: contexts that the ledger has."""
        unknown = self.contexts - known
        if unknown:
            query = select(contexts.c.context).where(contexts.c.context.in_(unknown))
            new = unknown - set(connection.execute(query).scalars())
            if new:
                connection.execute(insert(contexts), [self._contexts[number] for number in sorted(new)])
        if self._minutes:
            connection.execute(insert(minutes), self._minutes)


def newest_minute(
    database: Database, fleet: str, since: float | None = None, until: float | None = None
) -> RecordedMinute | None:
    """Return the newest minute in a span whose groups were read, else the newest; None when there is none."""
    wanted = _wanted(fleet, since, until).order_by(minutes.c.seq.desc()).limit(_LOOKED_BACK)
    known = _contexts_of(database, fleet)
    with database.read() as connection:
        rows = connection.execute(wanted).all()
    found = [_read(fleet, known, row) for row in rows]
    return next((minute for minute in found if minute.requested), found[0] if found else None)


def read_minutes(
    database: Database, fleet: str, since: float | None = None, until: float | None = None
) -> Iterator[RecordedMinute]:
    """Yield a fleet's minutes with since <= their end < until, in the order in which they were written.

    It reads page by page, so that a year needs no more memory than an hour; LedgerError when a row is damaged.
    """
    known, wanted = _contexts_of(database, fleet), _wanted(fleet, since, until)
    wanted, last = wanted.order_by(minutes.c.seq).limit(_PAGE), -1
    while True:
        with database.read() as connection:
            page = connection.execute(wanted.where(minutes.c.seq > last)).all()
        for row in page:
            if row.context not in known:
                # It came while we read.
                known = _contexts_of(database, fleet)
            yield _read(fleet, known, row)
        if len(page) < _PAGE:
            return
        last = page[-1].seq


def _contexts_of(database: Database, fleet: str) -> dict[int, MinuteContext]:
    query = select(contexts.c.context, contexts.c.body).where(contexts.c.fleet == fleet)
    with database.read() as connection:
        rows = connection.execute(query).all()
    return {row.context: codec.decode(MinuteContext, codec.unpack(row.body)) for row in rows}


def _wanted(fleet: str, since: float | None, until: float | None) -> Select[Any]:
    wanted = select(minutes.c.seq, minutes.c.minute, minutes.c.epoch, minutes.c.context, minutes.c.body)
    wanted = wanted.where(minutes.c.fleet == fleet)
    if since is not None:
        wanted = wanted.where(minutes.c.minute >= since)
    return wanted if until is None else wanted.where(minutes.c.minute < until)


def _read(fleet: str, known: Mapping[int, MinuteContext], row: Row[Any]) -> RecordedMinute:
    context = known.get(row.context)
    if context is None:
        lacks = f"minute {row.minute} of fleet {fleet} lacks its context {row.context}"
        raise LedgerError(f"{lacks}: the ledger is damaged")
    return decoded(float(row.minute), row.epoch, context, row.body)


def forget(connection: Connection, before: float, most: int) -> int:
    """Remove at most so many minutes older than a time, and return how many; the oldest rows alone are looked at.

    Contexts stay: there are only as many as there were settings and policies.
    """
    head = select(minutes.c.seq, minutes.c.minute).order_by(minutes.c.seq).limit(most).subquery()
    due = list(connection.execute(select(head.c.seq).where(head.c.minute < before)).scalars())
    if due:
        connection.execute(delete(minutes).where(minutes.c.seq <= max(due), minutes.c.minute < before))
    return len(due)


# No decision rests on it: a return to an older version, which may be urgent, need not wait for its name.
KEPT: Final = StoredState(LEARNING, forget=forget)


class Refusals:
    """How often AWS had no capacity for a request, per fleet and group, until a minute has recorded it.

    An intent that is followed for minutes counts once for each shortage that it meets.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self._met: dict[str, object] = {}

    def note(self, intent: Intent, outcome: Outcome) -> None:
        """Take in what came of an intent."""
        if (outcome.shortages or outcome.reason is Reason.NO_CAPACITY) and (
            self._met.get(intent.intent_id) != outcome.shortages
        ):
            self._met[intent.intent_id] = outcome.shortages
            counts = self._counts.setdefault(intent.fleet, {})
            counts[intent.group] = counts.get(intent.group, 0) + 1
        if outcome.status.final:
            self._met.pop(intent.intent_id, None)

    def of(self, fleet: Fleet) -> dict[int, int]:
        """Return the counts of a fleet since it was last recorded, by position of the group."""
        counts = self._counts.get(fleet.name, {})
        return {k: counts[group.key] for k, group in enumerate(fleet.groups) if group.key in counts}

    def recorded(self, fleets: Iterable[str]) -> None:
        """Start counting these fleets anew."""
        for name in fleets:
            self._counts.pop(name, None)
