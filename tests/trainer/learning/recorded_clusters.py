"""A simulated cluster played through the agent's own service into a ledger: who came, grew, was refused and ended."""

from __future__ import annotations

from pathlib import Path

from agent.admission.cluster import AdmissionService
from agent.admission.records import AdmissionRequest, DeploymentEvent, EventKind
from agent.admission.state import AdmissionStore
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.rules.admission.cluster import ClusterRules, PolicyKind
from domain.rules.admission.population import POPULATIONS, Population
from simulator.admission import Cluster, draw_run, play, rule_of
from simulator.admission.engine import ADMITTED, CORE_ENDED, REFUSED, SCALE_REFUSED, SCALED, SHUT_DOWN

START_S = 1_790_000_000.0
HOUR_S = 3600.0
SMALL = Population(0.9, 0.5, 1.0, 1.2, 0.88, 0.8, 0.6, 8.0)
"""Deployments that live for hours: many of them are told of by few events."""
KINDS = {
    ADMITTED: EventKind.STARTED,
    SCALED: EventKind.SCALED,
    SCALE_REFUSED: EventKind.REFUSED,
    CORE_ENDED: EventKind.CORE_ENDED,
    SHUT_DOWN: EventKind.SHUTDOWN,
}
MOST_EVENTS = 400_000


def rules(capacity: int, population: Population = POPULATIONS["K"]) -> ClusterRules:
    """The cluster `main`, which admits whatever fits below its capacity."""
    return ClusterRules(
        name="main",
        capacity_cores=capacity,
        population=population,
        policy=PolicyKind.ZEROTH,
        threshold_cores=float(capacity),
    )


def record(
    path: Path,
    cluster: Cluster,
    hours: float,
    seed: int = 0,
    *,
    at: float = START_S,
    shadow: tuple[str, ClusterRules] | None = None,
) -> int:
    """Play a cluster under zeroth, report every event to the service on a ledger, and return how many there were.

    shadow: a model on probation, and its rules.
    """
    log = play(draw_run(cluster, seed, hours=hours), rule_of(f"zeroth:{cluster.capacity}"), log=MOST_EVENTS).log
    assert len(log) < MOST_EVENTS
    clock = VirtualClock(at)
    with Ledger.open(f"sqlite:///{path}") as ledger:
        service = AdmissionService(rules(cluster.capacity), AdmissionStore(ledger), clock)
        if shadow is not None:
            service.try_out(*shadow)
        batch: list[DeploymentEvent] = []
        for number, (kind, whose, cores, time) in enumerate(
            zip(*(log[name].tolist() for name in ("kind", "deployment", "cores", "time")), strict=True)
        ):
            now, name = at + time * HOUR_S, f"d{seed}-{whose}"
            clock.step(now - clock.now())
            if kind == REFUSED:
                # The others start without asking, so that nobody's future has to be computed.
                service.observe(batch)
                batch = []
                assert not service.answer([AdmissionRequest(deployment_id=name, cores=cores)])[0].admit
                continue
            size = 0 if kind == SHUT_DOWN else 1 if kind == CORE_ENDED else cores
            batch.append(DeploymentEvent(f"e{seed}-{number}", name, KINDS[kind], size, time=now))
        service.observe(batch)
    return len(log)
