"""What the ledger keeps of clusters that deployments ask to come into: deployments, events, decisions."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Double,
    Index,
    LargeBinary,
    RowMapping,
    Select,
    String,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from agent.admission.deployments import Deployment, Stage
from agent.admission.gate.records import number_groups_from
from agent.admission.records import AdmissionDecision, DeploymentEvent
from agent.kernel.store import DecisionStore, Record, decoded
from agent.kernel.transaction import Conflict, Write, commit
from agent.ledger import Ledger, codec, state
from agent.ledger.kept import LEARNING, StoredState
from agent.ledger.schema import Seq, metadata
from agent.ledger.schema import decisions as decided
from domain.decisions import Event
from domain.rules.admission.names import Name, Tally

ADMISSION: Final = "admission"
_NAMED: Final = "label."
"""What the keys of names begin with, in the ledger's state of a cluster."""
_IN_ONE_LOOK: Final = 200
_PAGE: Final = 4000

# What a cluster holds; `revision` grows with each change, so that two writers cannot both start from the same state.
clusters = Table(
    "admission_clusters",
    metadata,
    Column("cluster", String, primary_key=True),
    Column("revision", Seq, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# The present state of each deployment that asked a cluster or started in it.
deployments = Table(
    "admission_deployments",
    metadata,
    Column("cluster", String, primary_key=True),
    Column("deployment_id", String, primary_key=True),
    Column("stage", String, nullable=False),
    Column("last_at", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("admission_deployments_by_time", "last_at"),
)

# Every event that was reported, so that one reported twice counts once, and what learning knows of deployments: kept as
# long as what else learning needs.
events = Table(
    "admission_events",
    metadata,
    Column("cluster", String, primary_key=True),
    Column("event_id", String, primary_key=True),
    Column("at", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("admission_events_by_time", "at"),
)


@dataclass(frozen=True, slots=True)
class ClusterCounts:
    """What is counted of a cluster: decisions ever, and requests for more cores in the month that began at `month`.

    decisions: the number of the newest one. month: epoch seconds of its first moment, UTC. requests_ever,
    failures_ever: of all months.
    """

    decisions: int = 0
    month: float = 0.0
    requests: int = 0
    failures: int = 0
    requests_ever: int = 0
    failures_ever: int = 0


def month_of(at: float) -> float:
    """Return the first moment of the calendar month, UTC, in epoch seconds."""
    day = datetime.fromtimestamp(at, UTC)
    return datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class Inside:
    """A cluster as the ledger has it; `revision` is 0 for one that was never written."""

    revision: int
    counts: ClusterCounts
    deployments: tuple[Deployment, ...]
    tallies: Mapping[Name, Tally] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamedTally:
    """What was gathered of a name, as the ledger has it."""

    owner: str
    label: str
    tally: Tally


@dataclass(frozen=True, slots=True)
class Change:
    """What is written at once: new counts, and the deployments, events, decisions and journal events that changed.

    tallies: of names, None for one that falls away.
    """

    counts: ClusterCounts
    deployments: Sequence[Deployment] = ()
    events: Sequence[DeploymentEvent] = ()
    decisions: Sequence[AdmissionDecision] = ()
    notes: Sequence[Event] = ()
    tallies: Mapping[Name, Tally | None] = field(default_factory=dict)


class AdmissionStore:
    """Reads and writes clusters; each method raises LedgerUnavailable when the ledger cannot be used now."""

    def __init__(self, ledger: Ledger) -> None:
        self._database = ledger.database
        self._decisions = DecisionStore(ledger.database)

    def inside(self, cluster: str) -> Inside:
        """Return what a cluster holds, those that ended included as long as they are remembered."""
        with self._database.read() as connection:
            row = connection.execute(select(clusters).where(clusters.c.cluster == cluster)).first()
            if row is None:
                return Inside(0, ClusterCounts(), ())
            query = select(deployments.c.body).where(deployments.c.cluster == cluster)
            found = connection.execute(query.order_by(deployments.c.deployment_id)).scalars()
            held = tuple(codec.decode(Deployment, codec.unpack(body)) for body in found)
            named = [codec.decode(NamedTally, body) for body in state.under(connection, cluster, _NAMED)]
        tallies = {(one.owner, one.label): one.tally for one in named}
        return Inside(row.revision, codec.decode(ClusterCounts, codec.unpack(row.body)), held, tallies)

    def revision(self, cluster: str) -> int:
        """Return how often a cluster was written."""
        with self._database.read() as connection:
            query = select(clusters.c.revision).where(clusters.c.cluster == cluster)
            return connection.execute(query).scalar() or 0

    def events(self, cluster: str, event_ids: Collection[str]) -> dict[str, DeploymentEvent]:
        """Return those of these events that were taken before, by id."""
        wanted, found = list(event_ids), {}
        with self._database.read() as connection:
            for start in range(0, len(wanted), _IN_ONE_LOOK):
                some = wanted[start : start + _IN_ONE_LOOK]
                query = select(events.c.event_id, events.c.body).where(
                    events.c.cluster == cluster, events.c.event_id.in_(some)
                )
                for row in connection.execute(query):
                    found[row.event_id] = codec.decode(DeploymentEvent, codec.unpack(row.body))
        return found

    def events_since(self, cluster: str, since: float) -> tuple[DeploymentEvent, ...]:
        """Return the events with time >= since, in the order of their times."""
        query = select(events.c.body).where(events.c.cluster == cluster, events.c.at >= since)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(events.c.at)).scalars()
            return tuple(codec.decode(DeploymentEvent, codec.unpack(body)) for body in rows)

    def clusters(self) -> tuple[str, ...]:
        """Return the clusters that were ever written, by name."""
        with self._database.read() as connection:
            return tuple(connection.execute(select(clusters.c.cluster).order_by(clusters.c.cluster)).scalars())

    def span_of_events(self, cluster: str) -> tuple[float, float] | None:
        """Return the times of a cluster's first and last event that is kept; None without any."""
        query = select(func.min(events.c.at), func.max(events.c.at)).where(events.c.cluster == cluster)
        with self._database.read() as connection:
            first, last = connection.execute(query).one()
        return None if first is None else (first, last)

    def stream(self, cluster: str, until: float) -> Iterator[DeploymentEvent]:
        """Yield the events with time < until that are kept, in the order of their times.

        It reads page by page, so that a year needs no more memory than an hour. Events of one time come in the order of
        their ids.
        """
        query = select(events.c.event_id, events.c.at, events.c.body).where(
            events.c.cluster == cluster, events.c.at < until
        )
        for row in self._paged(query, events.c.at, events.c.event_id):
            yield codec.decode(DeploymentEvent, codec.unpack(row["body"]))

    def turned_away(self, cluster: str, since: float, until: float) -> int:
        """Return how many deployments asked in a span, as far as decisions are kept, and were never admitted in it.

        Advice does not count, as it turns nobody away.
        """
        of_span = (decided.c.decision == ADMISSION) & (decided.c.subject == cluster)
        of_span &= (decided.c.at >= since) & (decided.c.at < until)
        columns = (decided.c.decision_id, decided.c.about, decided.c.changed, decided.c.at, decided.c.body)
        admitted, refused = set[str](), set[str]()
        for row in self._paged(select(*columns).where(of_span), decided.c.at, decided.c.decision_id):
            if row["changed"]:
                admitted.add(row["about"])
            elif not codec.decode(AdmissionDecision, codec.unpack(row["body"])).advice:
                refused.add(row["about"])
        return len(refused - admitted)

    def _paged(self, query: Select[Any], at: Column[float], name: Column[str]) -> Iterator[RowMapping]:
        """Yield the rows of a query in the order of their times and names, page by page."""
        query = query.order_by(at, name).limit(_PAGE)
        wanted = query
        while True:
            with self._database.read() as connection:
                page = connection.execute(wanted).mappings().all()
            yield from page
            if len(page) < _PAGE:
                return
            then, last = page[-1][at.name], page[-1][name.name]
            wanted = query.where((at > then) | ((at == then) & (name > last)))

    def decision(self, decision_id: str) -> AdmissionDecision:
        """Return a decision; UnknownName when there is none of that id."""
        found = self._decisions.find(decision_id)
        mine = found if found is not None and found.decision == ADMISSION else None
        return decoded(AdmissionDecision, mine, decision_id, "no admission was decided under it; see the newest ones")

    def decision_of_request(self, cluster: str, request_id: str) -> AdmissionDecision | None:
        """Return what was decided on a request, None when it was never made."""
        found = self._decisions.answer(ADMISSION, cluster, request_id)
        return None if found is None else codec.decode(AdmissionDecision, found.body)

    def newest(self, cluster: str, limit: int = 20, deployment_id: str | None = None) -> tuple[AdmissionDecision, ...]:
        """Return a cluster's decisions, the newest first; of one deployment where that is given."""
        found = self._decisions.newest(ADMISSION, cluster, limit=limit, about=deployment_id)
        return tuple(codec.decode(AdmissionDecision, record.body) for record in found)

    def decisions_since(self, cluster: str, since: float) -> tuple[AdmissionDecision, ...]:
        """Return a cluster's decisions made since then, advice too, the oldest first."""
        of_span = (decided.c.decision == ADMISSION) & (decided.c.subject == cluster) & (decided.c.at >= since)
        query = select(decided.c.decision_id, decided.c.at, decided.c.body).where(of_span)
        rows = self._paged(query, decided.c.at, decided.c.decision_id)
        return tuple(codec.decode(AdmissionDecision, codec.unpack(row["body"])) for row in rows)

    def write(self, cluster: str, revision: int, change: Change) -> int:
        """Write a change to a cluster at `revision`, and return its new one: all or nothing; Conflict at another."""
        # Encoded before any lock is taken.
        deployed, happened = _deployment_rows(cluster, change), _event_rows(cluster, change)

        def other(connection: Connection) -> None:
            _advance(connection, cluster, revision, change.counts)
            _put_tallies(connection, cluster, change.tallies)
            if deployed:
                connection.execute(state.upsert(connection, deployments), deployed)
            if happened:
                connection.execute(insert(events), happened)

        commit(self._database, Write(records=_records(cluster, change), notes=change.notes), other)
        return revision + 1


def _deployment_rows(cluster: str, change: Change) -> list[dict[str, Any]]:
    return [
        {
            "cluster": cluster,
            "deployment_id": deployment.deployment_id,
            "stage": deployment.stage.value,
            "last_at": deployment.last_at,
            "body": codec.pack(codec.encode(deployment)),
        }
        for deployment in change.deployments
    ]


def _put_tallies(connection: Connection, cluster: str, tallies: Mapping[Name, Tally | None]) -> None:
    rows = []
    for (owner, label), tally in tallies.items():
        key = _NAMED + json.dumps([owner, label])
        if tally is None:
            state.remove(connection, cluster, key)
        else:
            rows.append((cluster, key, codec.encode(NamedTally(owner, label, tally))))
    state.put(connection, rows)


def _event_rows(cluster: str, change: Change) -> list[dict[str, Any]]:
    return [
        {"cluster": cluster, "event_id": e.event_id, "at": e.time, "body": codec.pack(codec.encode(e))}
        for e in change.events
    ]


def _records(cluster: str, change: Change) -> list[Record]:
    return [
        Record(
            decision_id=decision.decision_id,
            decision=ADMISSION,
            subject=cluster,
            at=decision.at,
            body=codec.encode(decision),
            number=change.counts.decisions - len(change.decisions) + k,
            request_id=decision.request_id,
            about=decision.deployment_id,
            changed=decision.admit and not decision.advice,
        )
        for k, decision in enumerate(change.decisions, start=1)
    ]


def _advance(connection: Connection, cluster: str, revision: int, counts: ClusterCounts) -> None:
    body = codec.pack(codec.encode(counts))
    if revision == 0:
        connection.execute(insert(clusters), [{"cluster": cluster, "revision": 1, "body": body}])
        return
    done = connection.execute(
        update(clusters)
        .where(clusters.c.cluster == cluster, clusters.c.revision == revision)
        .values(revision=revision + 1, body=body)
    )
    if done.rowcount != 1:
        raise Conflict


def _forget(connection: Connection, before: float, most: int) -> int:
    gone = (deployments.c.last_at < before) & (deployments.c.stage == Stage.GONE.value)
    return _remove_old(connection, deployments.c.deployment_id, deployments.c.last_at, gone, most)


def _forget_events(connection: Connection, before: float, most: int) -> int:
    return _remove_old(connection, events.c.event_id, events.c.at, events.c.at < before, most)


def _remove_old(
    connection: Connection, name: Column[str], time: Column[float], which: ColumnElement[bool], most: int
) -> int:
    """Remove the oldest rows of a table of clusters; name: of its column beside the cluster that tells rows apart."""
    table = name.table
    query = select(table.c.cluster, name).where(which).order_by(time).limit(most)
    due = [{"of": cluster, "gone": gone} for cluster, gone in connection.execute(query)]
    if due:
        statement = delete(table).where(table.c.cluster == bindparam("of"), name == bindparam("gone"))
        connection.execute(statement, due)
    return len(due)


def _newest_number(connection: Connection) -> int:
    bodies = connection.execute(select(clusters.c.body)).scalars()
    return max((codec.decode(ClusterCounts, codec.unpack(body)).decisions for body in bodies), default=0)


def _number_from(connection: Connection, first: int) -> None:
    for cluster, body in connection.execute(select(clusters.c.cluster, clusters.c.body)).all():
        counts = replace(codec.decode(ClusterCounts, codec.unpack(body)), decisions=first)
        connection.execute(
            update(clusters)
            .where(clusters.c.cluster == cluster)
            .values(body=codec.pack(codec.encode(counts)), revision=clusters.c.revision + 1)
        )
    number_groups_from(connection, first)


KEPT: Final = StoredState(ADMISSION, _forget, _newest_number, _number_from)

EVENTS_KEPT: Final = StoredState(LEARNING, forget=_forget_events)
