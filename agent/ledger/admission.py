"""What the ledger keeps of clusters that deployments ask to come into: deployments, events, decisions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Insert, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from agent.admission.deployments import Deployment, Stage
from agent.admission.records import AdmissionDecision, DeploymentEvent
from agent.ledger import codec, journal
from agent.ledger.database import Clash, Database
from agent.ledger.schema import admission_clusters as clusters
from agent.ledger.schema import admission_decisions as decisions
from agent.ledger.schema import admission_deployments as deployments
from agent.ledger.schema import admission_events as events
from domain.decisions import Event
from domain.errors import UnknownName

_IN_ONE_LOOK: Final = 200


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


@dataclass(frozen=True, slots=True)
class Inside:
    """A cluster as the ledger has it; `revision` is 0 for one that was never written."""

    revision: int
    counts: ClusterCounts
    deployments: tuple[Deployment, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """What is written at once: new counts, and the deployments, events, decisions and journal events that changed."""

    counts: ClusterCounts
    deployments: Sequence[Deployment] = ()
    events: Sequence[DeploymentEvent] = ()
    decisions: Sequence[AdmissionDecision] = ()
    notes: Sequence[Event] = ()


class Moved(Exception):
    """Another process changed the cluster meanwhile: read it again, and decide again."""


class AdmissionStore:
    """Reads and writes clusters; each method raises LedgerUnavailable when the ledger cannot be used now."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def inside(self, cluster: str) -> Inside:
        """Return what a cluster holds, those that ended included as long as they are remembered."""
        with self._database.read() as connection:
            row = connection.execute(select(clusters).where(clusters.c.cluster == cluster)).first()
            if row is None:
                return Inside(0, ClusterCounts(), ())
            query = select(deployments.c.body).where(deployments.c.cluster == cluster)
            found = connection.execute(query.order_by(deployments.c.deployment_id)).scalars()
            held = tuple(codec.decode(Deployment, codec.unpack(body)) for body in found)
        return Inside(row.revision, codec.decode(ClusterCounts, codec.unpack(row.body)), held)

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

    def decision(self, decision_id: str) -> AdmissionDecision:
        """Return a decision; UnknownName when there is none of that id."""
        found = self.find(decision_id)
        if found is None:
            raise UnknownName("decision_id", decision_id, "no admission was decided under it; see the newest ones")
        return found

    def find(self, decision_id: str) -> AdmissionDecision | None:
        """Return a decision, None when there is none of that id."""
        query = select(decisions.c.body).where(decisions.c.decision_id == decision_id)
        with self._database.read() as connection:
            body = connection.execute(query).scalar()
        return None if body is None else _decision(body)

    def decision_of_request(self, cluster: str, request_id: str) -> AdmissionDecision | None:
        """Return what was decided on a request, None when it was never made."""
        query = select(decisions.c.body).where(decisions.c.cluster == cluster, decisions.c.request_id == request_id)
        with self._database.read() as connection:
            body = connection.execute(query).scalar()
        return None if body is None else _decision(body)

    def newest(self, cluster: str, limit: int = 20, deployment_id: str | None = None) -> tuple[AdmissionDecision, ...]:
        """Return a cluster's decisions, the newest first; of one deployment where that is given."""
        query = select(decisions.c.body).where(decisions.c.cluster == cluster)
        if deployment_id is not None:
            query = query.where(decisions.c.deployment_id == deployment_id)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(decisions.c.number.desc()).limit(limit)).scalars()
            return tuple(_decision(body) for body in rows)

    def write(self, cluster: str, revision: int, change: Change) -> int:
        """Write a change to a cluster that stands at `revision`, and return its new one: all or nothing.

        Moved when it no longer stands there.
        """
        bodies = _Bodies(cluster, change)
        try:
            with self._database.write() as connection:
                _advance(connection, cluster, revision, change.counts)
                bodies.write(connection)
        except Clash as clash:
            # Where writers run side by side both may find the row missing; the second is told so here.
            raise Moved from clash
        return revision + 1

    def replace(self, cluster: str, revision: int, change: Change) -> int:
        """Put what `change` holds in the place of every deployment and event of a cluster; as `write` otherwise."""
        bodies = _Bodies(cluster, change)
        with self._database.write() as connection:
            _advance(connection, cluster, revision, change.counts)
            connection.execute(delete(deployments).where(deployments.c.cluster == cluster))
            connection.execute(delete(events).where(events.c.cluster == cluster))
            bodies.write(connection)
        return revision + 1


class _Bodies:
    """A change encoded before any lock is taken."""

    def __init__(self, cluster: str, change: Change) -> None:
        self._deployments = [
            {
                "cluster": cluster,
                "deployment_id": deployment.deployment_id,
                "stage": deployment.stage.value,
                "last_at": deployment.last_at,
                "body": codec.pack(codec.encode(deployment)),
            }
            for deployment in change.deployments
        ]
        self._events = [
            {"cluster": cluster, "event_id": e.event_id, "at": e.time, "body": codec.pack(codec.encode(e))}
            for e in change.events
        ]
        self._decisions = [
            {
                "decision_id": decision.decision_id,
                "cluster": cluster,
                "number": change.counts.decisions - len(change.decisions) + k,
                "deployment_id": decision.deployment_id,
                "request_id": decision.request_id or None,
                "at": decision.at,
                "body": codec.pack(codec.encode(decision)),
            }
            for k, decision in enumerate(change.decisions, start=1)
        ]
        self._notes = [journal.event_row(note) for note in change.notes]

    def write(self, connection: Connection) -> None:
        """Write everything."""
        if self._deployments:
            connection.execute(_upsert(connection.dialect.name), self._deployments)
        if self._events:
            connection.execute(insert(events), self._events)
        if self._decisions:
            connection.execute(insert(decisions), self._decisions)
        journal.add(connection, self._notes)


def _decision(body: bytes) -> AdmissionDecision:
    return codec.decode(AdmissionDecision, codec.unpack(body))


def _upsert(dialect: str) -> Insert:
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(deployments)
    new = statement.excluded
    upsert: Insert = statement.on_conflict_do_update(
        index_elements=["cluster", "deployment_id"],
        set_={"stage": new["stage"], "last_at": new["last_at"], "body": new["body"]},
    )
    return upsert


def _advance(connection: Connection, cluster: str, revision: int, counts: ClusterCounts) -> None:
    body = codec.pack(codec.encode(counts))
    if revision == 0:
        there = connection.execute(select(clusters.c.revision).where(clusters.c.cluster == cluster)).first()
        if there is not None:
            raise Moved
        connection.execute(insert(clusters), [{"cluster": cluster, "revision": 1, "body": body}])
        return
    done = connection.execute(
        update(clusters)
        .where(clusters.c.cluster == cluster, clusters.c.revision == revision)
        .values(revision=revision + 1, body=body)
    )
    if done.rowcount != 1:
        raise Moved


def forget(connection: Connection, before: float, most: int) -> int:
    """Remove up to `most` events, decisions and ended deployments older than `before`; return how many there were."""
    removed = 0
    for rows in (_old_events, _old_decisions, _old_deployments):
        if removed < most:
            removed += rows(connection, before, most - removed)
    return removed


def _old_events(connection: Connection, before: float, most: int) -> int:
    query = select(events.c.cluster, events.c.event_id).where(events.c.at < before).order_by(events.c.at).limit(most)
    due = [{"of": row.cluster, "gone": row.event_id} for row in connection.execute(query)]
    if due:
        statement = delete(events).where(events.c.cluster == bindparam("of"), events.c.event_id == bindparam("gone"))
        connection.execute(statement, due)
    return len(due)


def _old_decisions(connection: Connection, before: float, most: int) -> int:
    query = select(decisions.c.decision_id).where(decisions.c.at < before).order_by(decisions.c.at).limit(most)
    due = [{"gone": found} for found in connection.execute(query).scalars()]
    if due:
        connection.execute(delete(decisions).where(decisions.c.decision_id == bindparam("gone")), due)
    return len(due)


def _old_deployments(connection: Connection, before: float, most: int) -> int:
    query = (
        select(deployments.c.cluster, deployments.c.deployment_id)
        .where(deployments.c.last_at < before, deployments.c.stage == Stage.GONE.value)
        .order_by(deployments.c.last_at)
        .limit(most)
    )
    due = [{"of": row.cluster, "gone": row.deployment_id} for row in connection.execute(query)]
    if due:
        statement = delete(deployments).where(
            deployments.c.cluster == bindparam("of"), deployments.c.deployment_id == bindparam("gone")
        )
        connection.execute(statement, due)
    return len(due)
