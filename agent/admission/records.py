"""Requests to a cluster, its answers, the events reported to it, and their checks (admission specification §10).

Times are seconds since the epoch, horizons and spans of observation hours, sizes cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from agent.kernel.http import NUMERIC, Body
from domain.decisions import Reason
from domain.errors import BadInput
from domain.rules.admission.names import LONGEST_NAME, NAME_OR_NONE
from domain.rules.admission.population import Population

LONGEST_ID: Final = 255
LONGEST_WORDS: Final = 200
MOST_CORES: Final = 10_000_000
MOST_KINDS: Final = 8
MOST_NUMBER: Final = 1e15
AHEAD_S: Final = 300.0
"""Most by which the clock of a reporter may be ahead."""
PRINTED: Final = r"^[^\x00-\x1f\x7f]+$"
"""A text without control characters."""

Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=PRINTED)]
DeploymentId = Annotated[Id, Field(description="The deployment's id, of your choice.", examples=["shop-42"])]
ClusterName = Annotated[
    str | None, Field(max_length=63, description="Cluster meant; not needed when there is one.", examples=["main"])
]
LabelName = Annotated[str, Field(max_length=LONGEST_NAME, pattern=NAME_OR_NONE, examples=["batch"])]
Amount = Annotated[float, Field(ge=0, le=MOST_NUMBER, allow_inf_nan=False), NUMERIC]
EventId = Annotated[Id, Field(description="Unique per event; a repeated event counts once.")]
EventTime = Annotated[
    float,
    Field(ge=0, le=MOST_NUMBER, allow_inf_nan=False, description="When, in seconds since the epoch."),
    NUMERIC,
]
EventCores = Annotated[int, Field(ge=0, le=MOST_CORES, description="How many; 0 with `shutdown`."), NUMERIC]
CoresAfter = Annotated[
    int | None, Field(ge=0, le=MOST_CORES, description="Cores that it has then, where that is known."), NUMERIC
]
StartedLabel = Annotated[
    LabelName, Field(description="With `started`, of a deployment that was not admitted: its kind.")
]
StartedOwner = Annotated[LabelName, Field(description="With `started`, of one that was not admitted: whose it is.")]


@dataclass(frozen=True, slots=True)
class Prior:
    """Observations of a deployment's kind before it asks; of several, each is a possible kind (§8)."""

    deaths: Annotated[Amount, Field(description="Cores that ended, one by one.")] = 0.0
    core_hours: Annotated[Amount, Field(description="Hours that those cores ran, together.")] = 0.0
    scale_outs: Annotated[Amount, Field(description="Requests for more cores.")] = 0.0
    gap_hours: Annotated[Amount, Field(description="Hours in which those requests were looked for.")] = 0.0
    extra_cores: Annotated[Amount, Field(description="Sum of (cores - 1) over requests whose size was seen.")] = 0.0
    size_draws: Annotated[Amount, Field(description="Requests whose size was seen.")] = 0.0
    label: Annotated[str, Field(max_length=LONGEST_WORDS, description="Its name, where there are several.")] = ""
    weight: Annotated[
        float,
        Field(gt=0, le=MOST_NUMBER, allow_inf_nan=False, description="Chance of this kind against the others."),
        NUMERIC,
    ] = 1.0


class AdmissionRequest(Body, frozen=True):
    """A deployment that asks to come in; made from a body or by the gate, it is valid."""

    cluster: ClusterName = None
    deployment_id: DeploymentId
    cores: Annotated[int, Field(ge=1, le=MOST_CORES, description="Cores that it asks for.", examples=[16]), NUMERIC]
    observations: Annotated[
        tuple[Prior, ...],
        Field(max_length=MOST_KINDS, description="None: the population speaks. One: so much was seen. Several: kinds."),
    ] = ()
    requested_by: Annotated[
        str, Field(max_length=LONGEST_WORDS, description="Name of the requester, for the record.", examples=["ada"])
    ] = ""
    request_id: Annotated[
        str,
        Field(
            max_length=LONGEST_WORDS,
            description="The same one again gets the same decision.",
            examples=["shop-42-first"],
        ),
    ] = ""
    label: Annotated[
        LabelName,
        Field(description="Kind of deployment, by a name of yours: those of one name are expected to be alike."),
    ] = ""
    owner: Annotated[LabelName, Field(description="Whose it is. A label is learnt within its owner.")] = ""


class PriorKind(StrEnum):
    """The basis of a forecast; label or owner where deployments of that name were seen."""

    POPULATION = "population"
    OWNER = "owner"
    LABEL = "label"
    OBSERVATIONS = "observations"
    MIXTURE = "mixture"


@dataclass(frozen=True, slots=True)
class LabelWeight:
    """A kind that a deployment may be of, and its chance given the first size."""

    label: str
    weight: float


@dataclass(frozen=True, slots=True)
class NamedLaw:
    """The law of a label within its owner, and from how many deployments it was learnt.

    of_label, of_owner: live deployments and ended ones, which fade; the label's count for the owner too.
    """

    law: Population
    of_label: float
    of_owner: float
    half_life_days: float


@dataclass(frozen=True, slots=True)
class PriorSource:
    """The basis of a forecast: how many observations, the possible kinds, and the law of its names.

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
class ShadowAnswer:
    """The decision that a model on probation, by its file's SHA-256, would have made in this cluster.

    failed: why there is no answer, "" where there is one; then `admit` has no meaning.
    """

    model: str
    admit: bool
    reason: Reason
    failed: str = ""


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """Whether a deployment may come in, and the figures behind it.

    reason: ADMITTED, REJECTED_FEASIBILITY (does not fit now), REJECTED_PLACEMENT (its containers find no host),
    REJECTED_RULE (would not fit in time to come),
    REJECTED_UNSAFE (the cluster breaks its rule without the newcomer, from `binding_hours` on) or REJECTED_INPUT.
    total_cores, live: before the newcomer. Figures of a horizon are None where none was evaluated.
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
    """Deployments whose future was computed again."""
    requested_by: str = ""
    request_id: str = ""
    advice: bool = False
    """Nothing was taken in: this would have been the decision."""
    label: str = ""
    owner: str = ""
    deferred_cores: int = 0
    """Cores that deferred jobs hold on the same machines; capacity and threshold here are less by them."""
    shadow: ShadowAnswer | None = None
    """None where no model is on probation."""


class EventKind(StrEnum):
    """The kind of an event; `cores` is the number that it names.

    started: it runs with them. scaled: it got them in addition. refused: it asked for them and got none. core_ended:
    they ended, one by one. shutdown: all of it ended at once.
    """

    STARTED = "started"
    SCALED = "scaled"
    REFUSED = "refused"
    CORE_ENDED = "core_ended"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class DeploymentEvent:
    """An event of a deployment at `time` (epoch seconds); `event_id` is never used for another event.

    cores: see `EventKind`; 0 with shutdown. cores_after: how many cores it has then, where that is known; a
    difference is corrected, with an alarm. label, owner: of one that starts without having asked.
    """

    event_id: EventId
    deployment_id: DeploymentId
    kind: Annotated[
        EventKind,
        Field(description="`scaled`: number of cores added. `refused`: number of cores requested and not granted."),
    ]
    cores: EventCores = 0
    time: EventTime = field(kw_only=True)
    cores_after: CoresAfter = None
    label: StartedLabel = ""
    owner: StartedOwner = ""


@dataclass(frozen=True, slots=True)
class EventResult:
    """The result of an event, which is on disk; `already_seen` when it was before and changed nothing now.

    cores: of the deployment now. repaired: the corrected difference, "" for none.
    """

    event_id: str
    deployment_id: str
    cores: int
    already_seen: bool = False
    repaired: str = ""


def check_kinds(observations: tuple[Prior, ...]) -> None:
    """Raise BadInput for prior observations that contradict one another."""
    for prior in observations:
        if prior.deaths > 0.0 and prior.core_hours <= 0.0:
            raise BadInput("core_hours", prior.core_hours, "cores that ended have run: give their hours")
    labels = [prior.label for prior in observations]
    if len(labels) > 1 and len({label for label in labels if label}) < len(labels):
        raise BadInput("label", labels, "give each of several kinds a different label")


_EVENT: Final = TypeAdapter(DeploymentEvent)


def bad_input(error: ValidationError) -> BadInput:
    """Return the error of the first wrong value, by its field."""
    wrong = error.errors(include_url=False)[0]
    return BadInput(str(wrong["loc"][0]), wrong["input"], wrong["msg"])


def check_event(event: DeploymentEvent, now: float, last_at: float | None = None) -> None:
    """Raise BadInput for an event with a value that its type refuses, ahead of the clock, or about no cores.

    last_at: the time of the last event of its deployment. An event may be as late as that, so that a clock that was set
    back does not stop what the agent itself observes.
    """
    try:
        # The gate makes events from names of AWS; a stored one that its type refuses could not be read again.
        _EVENT.validate_python({each.name: getattr(event, each.name) for each in fields(event)})
    except ValidationError as error:
        raise bad_input(error) from None
    if event.time > max(now + AHEAD_S, now if last_at is None else last_at):
        raise BadInput("time", event.time, f"it is ahead of the agent's clock, {now!r}: set the clocks")
    if event.kind is not EventKind.SHUTDOWN and event.cores < 1:
        raise BadInput("cores", event.cores, f"give a whole number of cores, from 1 to {MOST_CORES}")
