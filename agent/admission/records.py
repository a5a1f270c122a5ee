"""What is asked of a cluster, what it answers, and what it is told: frozen records (admission specification §10).

Times are seconds since the epoch, horizons and spans of observation hours, sizes cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from domain.decisions import Reason


@dataclass(frozen=True, slots=True)
class Prior:
    """What was seen of a deployment's kind before it asks to come in (admission specification §8).

    Several of them in one request are the kinds that it may be of, each with its label and its chance.
    """

    deaths: float = 0.0
    """Cores that ended, one by one."""
    core_hours: float = 0.0
    """Hours that all those cores ran, together."""
    scale_outs: float = 0.0
    """Requests for more cores."""
    gap_hours: float = 0.0
    """Hours in which those requests were looked for."""
    extra_cores: float = 0.0
    """Sum of (cores - 1) over the requests whose size was seen."""
    size_draws: float = 0.0
    """Requests whose size was seen."""
    label: str = ""
    weight: float = 1.0
    """Chance of this kind against the others; they need not add up to 1."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A deployment of `cores` asks to come in; `AdmissionService.admit` judges the values.

    observations: none (the population alone speaks), one (so much was seen of it), or several (it is of one of these
    kinds). request_id: the same one again gets the same decision; without it, a deployment that was admitted and has
    not started yet gets its decision again.
    """

    cluster: str
    deployment_id: str
    cores: int
    observations: tuple[Prior, ...] = ()
    requested_by: str = ""
    request_id: str = ""


class PriorKind(StrEnum):
    """What a newcomer was judged by."""

    POPULATION = "population"
    OBSERVATIONS = "observations"
    MIXTURE = "mixture"


@dataclass(frozen=True, slots=True)
class LabelWeight:
    """A kind that a deployment may be of, and its chance after what its first size says."""

    label: str
    weight: float


@dataclass(frozen=True, slots=True)
class PriorSource:
    """What a newcomer was judged by: how many observations, and the kinds it may be of."""

    kind: PriorKind
    observations: float = 0.0
    labels: tuple[LabelWeight, ...] = ()


@dataclass(frozen=True, slots=True)
class Contributor:
    """A deployment and its part of a sum: cores of a mean, or cores squared of a variance."""

    deployment_id: str
    amount: float


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """Whether a deployment may come in, and all that it rests on.

    reason: ADMITTED, REJECTED_FEASIBILITY (does not fit now), REJECTED_RULE (would not fit in time to come),
    REJECTED_UNSAFE (the cluster breaks its rule without the newcomer, from `binding_hours` on) or REJECTED_INPUT.
    total_cores, live: before the newcomer. What no horizon was looked at for is None.
    """

    decision_id: str
    at: float
    cluster: str
    deployment_id: str
    cores: int
    admit: bool
    reason: Reason
    detail: str
    policy: str
    capacity_cores: int
    threshold_cores: float | None
    kappa: float | None
    risk_limit: float | None
    config_hash: str
    total_cores: int
    live: int
    prior: PriorSource
    binding_hours: float | None = None
    """The horizon with the least room, the newcomer counted."""
    binding_band: str = ""
    expected_cores: float | None = None
    sd_cores: float | None = None
    slack_cores: float | None = None
    """threshold - expected - kappa sd at the binding horizon; without kappa, threshold - expected."""
    peak_utilisation: float | None = None
    """Largest expected share of the capacity over all horizons."""
    peak_hours: float | None = None
    cantelli: float | None = None
    """Bound on the chance to exceed the capacity at the binding horizon, by two moments."""
    sgamma: float | None = None
    """The same chance, estimated by three moments."""
    marginal_bands: tuple[str, ...] = ()
    """Bands in which the newcomer was too small to count."""
    top_expected: tuple[Contributor, ...] = ()
    """Those with the largest parts of the mean at the binding horizon, the newcomer among them."""
    top_variance: tuple[Contributor, ...] = ()
    evaluation_us: float = 0.0
    refreshed: int = 0
    """Deployments whose future was computed anew."""
    requested_by: str = ""
    request_id: str = ""
    advice: bool = False
    """Nothing was taken in: this is what would have been decided."""


class EventKind(StrEnum):
    """What happened to a deployment.

    started: it runs, with so many cores. scaled: it got so many more. refused: it asked for so many more and got none.
    core_ended: so many of its cores ended, one by one. shutdown: all of it ended at once.
    """

    STARTED = "started"
    SCALED = "scaled"
    REFUSED = "refused"
    CORE_ENDED = "core_ended"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class DeploymentEvent:
    """Something that happened to a deployment at `time` (epoch seconds); `event_id` is never used for another event.

    cores: see `EventKind`; 0 with shutdown. cores_after: how many cores it has then, where that is known; what
    disagrees with it is put right and an alarm told.
    """

    event_id: str
    deployment_id: str
    kind: EventKind
    cores: int
    time: float
    cores_after: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The event is on disk; the deployment has `cores` now. repaired: what did not add up, "" when all did."""

    event_id: str
    deployment_id: str
    cores: int
    repaired: str = ""


@dataclass(frozen=True, slots=True)
class AlreadySeen:
    """The event was taken before, and changed nothing now; the deployment has `cores` now."""

    event_id: str
    deployment_id: str
    cores: int
