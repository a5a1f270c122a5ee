"""What of a running agent the HTTP interface and the metrics look at, as functions that any thread may call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.admission.clusters import Clusters
from agent.autoscaling.snapshot.series import ClaimKey
from agent.ledger import Ledger
from agent.oversubscription.pools import Pools
from agent.settings import Settings
from agent.view.board import StandingBoard
from collectors.base import CollectorHealth
from collectors.intake import IntakeCounters, RefusedClaim
from collectors.vm_names import Place, UnknownVms
from domain.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of readiness: its name, whether it holds, and a sentence for people."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class AgentParts:
    """A running agent from outside; every function may be called from any thread at any time.

    now: epoch seconds. monotonic: seconds that never step. fleets: those managed now. vms: by fleet, per group key the
    VMs that the cloud showed last. newest_sample: (fleet, group key, VM) to the time of its newest reading, None when
    there was none. series: how many series are held. claims: readings that were not believed. unknown_vms: VMs
    that no inventory shows, by fleet and group key. collectors, intake,
    aws_calls: the counters of collectors, listener and AWS session. alive: whether the loop turns, as the watchdog sees
    it. checks: further conditions of readiness, such as that of a model. clusters: those that deployments ask to come
    into. pools: those whose CPU is oversold.
    """

    settings: Settings
    board: StandingBoard
    ledger: Ledger
    now: Callable[[], float]
    monotonic: Callable[[], float]
    fleets: Callable[[], Sequence[Fleet]]
    vms: Callable[[Fleet], Mapping[str, Sequence[str]]]
    newest_sample: Callable[[str, str, str], float | None]
    series: Callable[[], int]
    collectors: Callable[[], Mapping[str, CollectorHealth]]
    intake: Callable[[], IntakeCounters]
    aws_calls: Callable[[], Mapping[tuple[str, str], int]]
    alive: Callable[[], bool] = lambda: True
    checks: tuple[Callable[[], Check], ...] = ()
    claims: Callable[[], Mapping[ClaimKey, RefusedClaim]] = dict
    unknown_vms: Callable[[], Mapping[Place, UnknownVms]] = dict
    clusters: Clusters = field(default_factory=lambda: Clusters({}))
    pools: Pools = field(default_factory=lambda: Pools({}))
