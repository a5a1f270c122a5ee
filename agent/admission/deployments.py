"""One deployment as a cluster knows it, and what each event makes of it (admission specification §3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from agent.admission.records import AdmissionRequest, DeploymentEvent, EventKind, Prior
from domain.errors import StateConflict
from domain.rules.admission.population import Population
from domain.units import HOUR_S

NOT_INSIDE = "it is not in this cluster: admit it, or report its start first"
NOT_TAKEN_IN = "it is not in this cluster, as observe mode admits no deployment: report its start first"


class Stage(StrEnum):
    """reserved: admitted, not started yet; its cores count. live: it runs. gone: it ended."""

    RESERVED = "reserved"
    LIVE = "live"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Deployment:
    """All that counts of what was seen of a deployment until `last_at`; times in epoch seconds.

    extra_cores, size_draws: over its own requests, the first size among them. decision_id: "" when it started without
    having asked. law: that of its names when it was admitted, None for the population.
    """

    deployment_id: str
    stage: Stage
    cores: int
    since: float
    last_at: float
    deaths: int = 0
    core_hours: float = 0.0
    scale_outs: int = 0
    extra_cores: int = 0
    size_draws: int = 1
    priors: tuple[Prior, ...] = ()
    decision_id: str = ""
    lapses_at: float | None = None
    label: str = ""
    owner: str = ""
    law: Population | None = None

    @property
    def counts(self) -> bool:
        """Whether its cores are taken."""
        return self.stage is not Stage.GONE

    @property
    def reserved_s(self) -> float | None:
        """How long its admission holds for it to start, None once that does not matter."""
        return None if self.lapses_at is None else self.lapses_at - self.since


@dataclass(frozen=True, slots=True)
class EventEffect:
    """What an event left: the deployment, and what did not add up, "" when all did."""

    deployment: Deployment
    repaired: str = ""


def reserved(
    request: AdmissionRequest, at: float, decision_id: str, lapses_at: float, law: Population | None
) -> Deployment:
    """Return a deployment that has just been admitted."""
    return Deployment(
        request.deployment_id,
        Stage.RESERVED,
        request.cores,
        since=at,
        last_at=at,
        extra_cores=request.cores - 1,
        priors=request.observations,
        decision_id=decision_id,
        lapses_at=lapses_at,
        label=request.label,
        owner=request.owner,
        law=law,
    )


def lapsed(deployment: Deployment) -> Deployment:
    """Return an admitted deployment that does not start after all, without its cores."""
    return replace(deployment, stage=Stage.GONE, cores=0, lapses_at=None)


def applied(deployment: Deployment | None, event: DeploymentEvent, *, not_inside: str = NOT_INSIDE) -> EventEffect:
    """Return what the event makes of the deployment, None being one that was never heard of.

    StateConflict when the event contradicts what is known: an unknown deployment (`not_inside` says what to do then),
    an earlier time than the last one, or a second start.
    """
    if event.kind is EventKind.STARTED:
        return _checked(_started(deployment, event), event)
    if deployment is None:
        raise StateConflict("deployment_id", event.deployment_id, not_inside)
    if deployment.stage is Stage.GONE:
        remedy = f"it ended at {deployment.last_at!r}: report its new start first"
        raise StateConflict("deployment_id", event.deployment_id, remedy)
    if deployment.stage is Stage.RESERVED:
        if event.kind is EventKind.SHUTDOWN:
            return _checked(EventEffect(lapsed(deployment)), event)
        remedy = f"{event.deployment_id} was admitted and has not started: report its start first"
        raise StateConflict("kind", event.kind.value, remedy)
    _in_order(deployment, event)
    now = _aged(deployment, event.time)
    if event.kind is EventKind.SHUTDOWN:
        return _checked(EventEffect(replace(now, stage=Stage.GONE, cores=0)), event)
    if event.kind is EventKind.CORE_ENDED:
        return _checked(_fewer(now, event.cores), event)
    granted = event.cores if event.kind is EventKind.SCALED else 0
    more = replace(
        now,
        cores=now.cores + granted,
        scale_outs=now.scale_outs + 1,
        extra_cores=now.extra_cores + event.cores - 1,
        size_draws=now.size_draws + 1,
    )
    return _checked(EventEffect(more), event)


def _started(deployment: Deployment | None, event: DeploymentEvent) -> EventEffect:
    if deployment is None or deployment.stage is Stage.GONE:
        if deployment is not None:
            _in_order(deployment, event)
        born = Deployment(event.deployment_id, Stage.LIVE, event.cores, event.time, event.time)
        return EventEffect(replace(born, extra_cores=event.cores - 1, label=event.label, owner=event.owner))
    if deployment.stage is Stage.LIVE:
        raise StateConflict("kind", event.kind.value, f"{event.deployment_id} runs since {deployment.since!r} already")
    # The admission was timed by our clock, the start by another's, which may be behind: from here on that one counts.
    live = replace(
        deployment,
        stage=Stage.LIVE,
        cores=event.cores,
        since=event.time,
        last_at=event.time,
        extra_cores=event.cores - 1,
        lapses_at=None,
    )
    if event.cores == deployment.cores:
        return EventEffect(live)
    return EventEffect(live, f"admitted with {deployment.cores} cores, started with {event.cores}")


def _fewer(now: Deployment, ended: int) -> EventEffect:
    left = now.cores - ended
    repaired = f"{ended} cores ended where {now.cores} were known" if left < 0 else ""
    died = replace(now, cores=max(left, 0), deaths=now.deaths + min(ended, now.cores))
    return EventEffect(died if left > 0 else replace(died, stage=Stage.GONE), repaired)


def _checked(result: EventEffect, event: DeploymentEvent) -> EventEffect:
    found = result.deployment
    if event.cores_after is None or event.cores_after == found.cores:
        return result
    detail = f"{found.cores} cores were known after this, {event.cores_after} were reported"
    stage = Stage.LIVE if event.cores_after else Stage.GONE
    mended = replace(found, cores=event.cores_after, stage=stage)
    return EventEffect(mended, f"{result.repaired}; {detail}" if result.repaired else detail)


def _in_order(deployment: Deployment, event: DeploymentEvent) -> None:
    if event.time < deployment.last_at:
        remedy = (
            f"it lies before {deployment.last_at!r}, the time of the last event of {event.deployment_id}: "
            "report events in the order of their times"
        )
        raise StateConflict("time", event.time, remedy)


def _aged(deployment: Deployment, at: float) -> Deployment:
    hours = (at - deployment.last_at) / HOUR_S
    return replace(deployment, last_at=at, core_hours=deployment.core_hours + deployment.cores * hours)
