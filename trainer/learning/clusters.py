"""What a ledger recorded of a cluster, as the table of virtual machines that `trimtab fit admission` reads.

Each core is a row, from the second in which it came to that in which it ended. Which core of a deployment ended is not
known, and says nothing in the model: the oldest did. A deployment that starts again after its end is another one. Ids
are hashed. What was refused is in no table, and is counted beside it.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from agent.admission.deployments import Deployment, applied
from agent.admission.records import DeploymentEvent, EventKind
from agent.admission.state import AdmissionStore
from domain.errors import StateConflict
from domain.units import DAY_S, HOUR_S
from trainer.learning.ledgers import LedgerRows, NoRecord, check_known, none_in_span, reading
from trainer.learning.tables import write_table

GAP_EVENTS: Final = 20.0
"""A stretch without an event is a gap where so many were to be expected at the mean rate of the rest."""
_LONGEST: Final = 100
_DIGITS: Final = 16
_ORDER: Final = {kind: place for place, kind in enumerate(EventKind)}

OnTime = Callable[[float], None]
"""Called with the time of an event that was read, epoch seconds, once a day of the record."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The record of one cluster in a span, epoch seconds; the ledger is read anew each time.

    source: of the ledger, without a password. events: of the whole record up to `until`, in the order of their times.
    turned_away: deployments that asked in the span and were never admitted in it, as far as decisions are kept.
    """

    cluster: str
    since: float
    until: float
    source: str
    events: Iterable[DeploymentEvent]
    turned_away: int = 0

    @property
    def hours(self) -> float:
        """Length of the span."""
        return (self.until - self.since) / HOUR_S


def read_cluster(source: str, cluster: str, since: float | None = None, until: float | None = None) -> ClusterRecord:
    """Return the record of a cluster; the span is that of its events where none is given, and ends with the last one.

    source: a SQLite file, or the URL of a ledger. BadInput for a cluster that the ledger does not know, or without an
    event in the span; LedgerUnavailable when the ledger cannot be read.
    """
    with reading(source) as ledger:
        store, place = AdmissionStore(ledger), ledger.place
        known, span = store.clusters(), store.span_of_events(cluster)
        check_known("cluster", cluster, known, ledger, "cluster")
        first = span[0] if span is not None and since is None else since
        # Nothing is known of the time after the last event: a table must not say that cores lived on in it.
        last = None if span is None else min(span[1] + 1.0, span[1] + 1.0 if until is None else until)
        if span is None or first is None or last is None or first >= last or last <= span[0]:
            raise none_in_span("cluster", cluster, place, "events", "report events, or ")
        turned_away = store.turned_away(cluster, first, last)
    events = LedgerRows(source, lambda ledger: AdmissionStore(ledger).stream(cluster, last))
    return ClusterRecord(cluster, first, last, place, events, turned_away)


@dataclass(slots=True)
class Counts:
    """What was read of a record: events in the span, deployments that began in it, and what no table shows.

    refused: requests for more cores. began_before: events of deployments whose start is not in the ledger any more,
    which are left out. contradicting: events that cannot follow what was known. repaired: those after which the sizes
    did not add up; what is missing is taken to have come or ended then. silences: the longest, as (seconds, from).
    """

    events: int = 0
    machines: int = 0
    deployments: int = 0
    refused: int = 0
    began_before: int = 0
    contradicting: int = 0
    repaired: int = 0
    silences: list[tuple[float, float]] = field(default_factory=list)

    def heard(self, since: float, until: float) -> None:
        """Take in that nothing was reported between two seconds of the record."""
        keep = heapq.heappush if len(self.silences) < _LONGEST else heapq.heappushpop
        keep(self.silences, (until - since, since))

    def gaps(self, seconds: float) -> list[tuple[float, float]]:
        """Return the silences of a record of so many seconds that are gaps, as (from, until), the first first.

        The rate is that of the time outside of gaps.
        """
        found: list[tuple[float, float]] = []
        for length, at in sorted(self.silences, reverse=True):
            heard_s = seconds - sum(end - begin for begin, end in found) - length
            if length < GAP_EVENTS * heard_s / max(self.events, 1):
                break
            found.append((at, at + length))
        return sorted(found)


@dataclass(slots=True)
class _DeploymentLife:
    """A deployment inside: its name in the table, its cores as (second of their request, how many), oldest first."""

    known: Deployment
    name: str
    owner: str
    cores: deque[list[int]] = field(default_factory=deque)
    requested_s: int = 0
    heard_s: int = 0


Rows = Iterator[str]
"""Lines of the table, one core each."""


def table_of(recorded: ClusterRecord, counts: Counts, on_time: OnTime = lambda at: None) -> Rows:
    """Yield the table line by line, in the order in which cores ended; those that live on come last.

    counts: filled in on the way. Seconds count from the begin of the span, and its begin is 0: what began before it has
    that time, and `fit admission` leaves it out. Requests of one deployment in one second are told apart by a second.
    """
    alive: dict[str, _DeploymentLife] = {}
    end_s = _second(recorded.until, recorded.since)
    before, day = recorded.since, 0.0
    for at, together in groupby(recorded.events, key=lambda event: event.time):
        if at >= recorded.since:
            counts.heard(before - recorded.since, at - recorded.since)
            before = at
        if at - day >= DAY_S:
            on_time(at)
            day = at
        for event in sorted(together, key=lambda one: _place(one, one.deployment_id in alive)):
            counts.events += at >= recorded.since
            for line in _taken(alive, event, recorded, counts):
                counts.machines += 1
                yield f"{counts.machines},{line}"
    counts.heard(before - recorded.since, recorded.until - recorded.since)
    for one in alive.values():
        for created, count in one.cores:
            for _ in range(count):
                counts.machines += 1
                yield f"{counts.machines},{_line(one, created, end_s)}"


def _place(event: DeploymentEvent, inside: bool) -> tuple[str, int]:
    """Return the place among events of one time: a start comes first, unless the deployment is inside already."""
    last = event.kind is EventKind.STARTED and inside
    return event.deployment_id, len(_ORDER) if last else _ORDER[event.kind]


def _second(at: float, since: float) -> int:
    """Return the second of the table: 0 for what was there when the span began, else from 1 on."""
    return int(at - since) + 1 if at >= since else 0


def _taken(alive: dict[str, _DeploymentLife], event: DeploymentEvent, recorded: ClusterRecord, counts: Counts) -> Rows:
    """Yield the cores that an event ended, and take in what it began."""
    one, inside = alive.get(event.deployment_id), event.time >= recorded.since
    if one is None and event.kind is not EventKind.STARTED:
        counts.began_before += inside
        return
    try:
        result = applied(None if one is None else one.known, event)
    except StateConflict:
        counts.contradicting += inside
        return
    counts.repaired += inside and bool(result.repaired)
    counts.refused += inside and event.kind is EventKind.REFUSED
    second = _second(event.time, recorded.since)
    if one is None:
        name = _hashed(recorded.cluster, event.deployment_id, repr(event.time))
        one = _DeploymentLife(result.deployment, name, _hashed(recorded.cluster, event.owner) if event.owner else "")
        alive[event.deployment_id] = one
        counts.deployments += inside
    there, wanted = one.known.cores if one.cores else 0, result.deployment.cores
    if event.kind is EventKind.CORE_ENDED:
        ending = min(event.cores, there)
        # They ended one by one since the last event; together at its end they would look like a shutdown.
        for k in range(ending):
            yield from _ended(one, max(second - (ending - 1 - k), min(one.heard_s, second)), 1, inside=inside)
        there -= ending
    # What is left is a request, a shutdown, or what was not reported.
    more = max(event.cores if event.kind is EventKind.SCALED else 0, wanted - there)
    if more > 0:
        # Requests of one instant are one request to whoever reads the table.
        one.requested_s = second if second == 0 else max(second, one.requested_s + 1)
        one.cores.append([one.requested_s, more])
    yield from _ended(one, second, there + max(more, 0) - wanted, inside=inside)
    one.known, one.heard_s = result.deployment, second
    if not result.deployment.counts:
        del alive[event.deployment_id]


def _ended(one: _DeploymentLife, second: int, cores: int, *, inside: bool) -> Rows:
    """Yield the oldest cores with their end; those that ended before the span are in no table."""
    left = cores
    while left > 0 and one.cores:
        created, count = one.cores[0]
        ending = min(left, count)
        for _ in range(ending if inside else 0):
            yield _line(one, created, second)
        left -= ending
        one.cores[0][1] -= ending
        if ending == count:
            one.cores.popleft()


def _line(one: _DeploymentLife, created: int, deleted: int) -> str:
    return f"{one.owner},{one.name},{created},{max(created, deleted)},0,0,0,Unknown,1,0\n"


def _hashed(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:_DIGITS]


def export_table(
    recorded: ClusterRecord,
    path: Path,
    version: str,
    parameters: Mapping[str, object],
    on_time: OnTime = lambda at: None,
) -> dict[str, Any]:
    """Write the table of a cluster, and `<path>.json` beside it; return what the latter holds.

    path: ends in .csv or .csv.gz. The side file has the digest, gaps, and what no table shows: see `Counts`. Both
    appear whole or not at all. BadInput when no deployment began in the span.
    """
    counts = Counts()

    def side(digest: str) -> dict[str, Any]:
        if not counts.deployments:
            raise NoRecord("cluster", recorded.cluster, "no deployment began in this span: widen --since and --until")
        return _side(recorded, counts, version, parameters, digest)

    return write_table(path, table_of(recorded, counts, on_time), side)


def _side(
    recorded: ClusterRecord, counts: Counts, version: str, parameters: Mapping[str, object], digest: str
) -> dict[str, Any]:
    seconds = recorded.until - recorded.since
    return {
        "cluster": recorded.cluster,
        "generator": "ledger",
        "version": version,
        "parameters": dict(parameters),
        "sha256": digest,
        "machines": counts.machines,
        "deployments": counts.deployments,
        "recorded": {
            "from": datetime.fromtimestamp(recorded.since, UTC).isoformat(),
            "until": datetime.fromtimestamp(recorded.until, UTC).isoformat(),
            "duration_s": seconds,
            "events": counts.events,
            "gaps_s": [[round(at, 1), round(end, 1)] for at, end in counts.gaps(seconds)],
            "turned_away": recorded.turned_away,
            "refused_requests": counts.refused,
            "began_before": counts.began_before,
            "contradicting": counts.contradicting,
            "repaired": counts.repaired,
        },
    }
