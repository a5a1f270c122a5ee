"""Requests to a cluster, its answers, the events reported to it, and their checks (admission specification §10).

Times are seconds since the epoch, horizons and spans of observation hours, sizes cores.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from domain.decisions import Reason
from domain.errors import BadInput
from domain.rules.admission.names import check_name
from domain.rules.admission.population import Population


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
    label: str = ""
    """What kind of deployment it is, by a name of its owner's choice: those of one name are expected to be alike."""
    owner: str = ""


class PriorKind(StrEnum):
    """What a newcomer was judged by; by its label or owner where something was seen of deployments of that name."""

    POPULATION = "population"
    OWNER = "owner"
    LABEL = "label"
    OBSERVATIONS = "observations"
    MIXTURE = "mixture"


@dataclass(frozen=True, slots=True)
class LabelWeight:
    """A kind that a deployment may be of, and its chance after what its first size says."""

    label: str
    weight: float


@dataclass(frozen=True, slots=True)
class NamedLaw:
    """The law of a label within its owner, and from how many deployments it was learnt.

    of_label, of_owner: those inside, and those that ended, which fade; of the owner the label's are included.
    """

    law: Population
    of_label: float
    of_owner: float
    half_life_days: float


@dataclass(frozen=True, slots=True)
class PriorSource:
    """What a newcomer was judged by: how many observations, the kinds it may be of, and what its names say.

    named: None unless the cluster goes by labels and the request names one, or an owner.
    """

    kind: PriorKind
    observations: float = 0.0
    labels: tuple[LabelWeight, ...] = ()
    named: NamedLaw | None = None


@dataclass(frozen=True, slots=True)
class Contributor:
    """A deployment and its part of a sum: cores of a mean, or cores squared of a variance."""

    deployment_id: str
    amount: float


@dataclass(frozen=True, slots=True)
class HourPrice:
    """What an hour of a deployment takes from a cluster, in core-hours; for a rule of mean and standard deviations.

    for_uncertainty: the cores that the rule keeps free because its size `ahead_hours` from now is not known.
    core_hours: these and its own cores. share: the former of the latter. amount: the price of core_hours in the
    currency of CORE_HOUR_PRICE, None where that is not set.
    """

    ahead_hours: float
    variance: float
    core_hours: float
    for_uncertainty: float
    share: float
    amount: float | None = None


@dataclass(frozen=True, slots=True)
class ShadowAnswer:
    """What a model on probation, by its file's SHA-256, would have decided on a request, with the cluster as it is.

    failed: why there is no answer, "" where there is one; then `admit` says nothing.
    """

    model: str
    admit: bool
    reason: Reason
    failed: str = ""


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
    label: str = ""
    owner: str = ""
    price: HourPrice | None = None
    deferred_cores: int = 0
    """Cores that deferred jobs hold on the same machines; capacity and threshold here are less by them."""
    """None where no future was looked at, or the rule does not go by standard deviations."""
    shadow: ShadowAnswer | None = None
    """None where no model is on probation."""


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
    disagrees with it is put right, with an alarm. label, owner: of one that starts without having asked.
    """

    event_id: str
    deployment_id: str
    kind: EventKind
    cores: int
    time: float
    cores_after: int | None = None
    label: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of an event: it is on disk; `already_seen` when it was before and changed nothing now.

    cores: those that the deployment has now. repaired: what did not add up, "" when all did.
    """

    event_id: str
    deployment_id: str
    cores: int
    already_seen: bool = False
    repaired: str = ""


LONGEST_ID: Final = 255
LONGEST_WORDS: Final = 200
MOST_CORES: Final = 10_000_000
MOST_KINDS: Final = 8
AHEAD_S: Final = 300.0
"""Clocks of those who tell of events may be so far ahead of ours."""
_ID = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_NUMBERS = tuple(field.name for field in fields(Prior) if field.name != "label")


def check_request(request: AdmissionRequest) -> None:
    """Raise BadInput when a value of the request cannot be used."""
    check_id("deployment_id", request.deployment_id)
    check_cores("cores", request.cores)
    for name in ("requested_by", "request_id"):
        _check_words(name, getattr(request, name))
    check_name("label", request.label)
    check_name("owner", request.owner)
    if len(request.observations) > MOST_KINDS:
        raise BadInput("observations", len(request.observations), f"give at most {MOST_KINDS} kinds")
    for prior in request.observations:
        _check_prior(prior)
    labels = [prior.label for prior in request.observations]
    if len(labels) > 1 and len({label for label in labels if label}) < len(labels):
        raise BadInput("label", labels, "give each of several kinds a different label")


def check_event(event: DeploymentEvent, now: float, last_at: float | None = None) -> None:
    """Raise BadInput when a value of the event cannot be used.

    last_at: the time of what is known of its deployment. An event may be as late as that, so that a clock that was set
    back does not stop what the agent itself observes.
    """
    check_id("event_id", event.event_id)
    check_id("deployment_id", event.deployment_id)
    _check_kind(event.kind)
    _check_time(event.time)
    if event.time > max(now + AHEAD_S, now if last_at is None else last_at):
        raise BadInput("time", event.time, f"it is ahead of the agent's clock, {now!r}: set the clocks")
    if event.kind is not EventKind.SHUTDOWN:
        check_cores("cores", event.cores)
    if event.cores_after is not None and not 0 <= _whole(event.cores_after) <= MOST_CORES:
        raise BadInput("cores_after", event.cores_after, "give a whole number of cores, 0 or more")
    check_name("label", event.label)
    check_name("owner", event.owner)


def check_id(field: str, value: object) -> None:
    """Raise BadInput unless the value can name a deployment or an event."""
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise BadInput(field, value, f"give 1 to {LONGEST_ID} characters, none of them a control character")


def check_cores(field: str, value: object) -> None:
    """Raise BadInput unless the value is a number of cores."""
    if not 1 <= _whole(value) <= MOST_CORES:
        raise BadInput(field, value, f"give a whole number of cores, from 1 to {MOST_CORES}")


def recorded_cores(value: object) -> int:
    """Return how many cores stand in the record of a request: 0 for what is no number of cores."""
    return max(min(_whole(value), MOST_CORES), 0)


def _whole(value: object) -> int:
    """Return a whole number, -1 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _check_words(field: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > LONGEST_WORDS:
        raise BadInput(field, value, f"give a text of at most {LONGEST_WORDS} characters")


def _check_kind(value: object) -> None:
    if not isinstance(value, EventKind):
        raise BadInput("kind", value, f"give one of {', '.join(EventKind)}")


def _check_time(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0.0:
        raise BadInput("time", value, "give seconds since the epoch")


def _check_prior(prior: Prior) -> None:
    for name in _NUMBERS:
        value = getattr(prior, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0.0:
            raise BadInput(name, value, "give a finite number, 0 or more")
    if prior.weight <= 0.0:
        raise BadInput("weight", prior.weight, "give a chance above 0")
    _check_words("label", prior.label)
    if prior.deaths > 0.0 and prior.core_hours <= 0.0:
        raise BadInput("core_hours", prior.core_hours, "cores that ended have run: give their hours")
