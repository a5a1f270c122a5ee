"""What a model file says of itself: its card, what makes a card unusable, and whether it fits a fleet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from domain.fleet import Fleet
from domain.observations.autoscaling import OBS7_NAMES, OBS7_VERSION, OBS_V2_VERSION, obs_v2_names, schema_hash
from domain.observations.autoscaling_scorer import CANDIDATE_FEATURES, SCORER_VERSION, STATE_FEATURES

MEMORY_OF: Mapping[str, tuple[str, ...]] = {"lstm": ("hidden", "cell"), "mlp": ()}
"""The recurrent inputs of each kind of network; the output that follows one is called after it, with `_next`."""

NOTHING = "nothing"

NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@checked(frozen=True)
class Golden:
    """Inputs by name with the outputs that the trainer got for them; every output must agree within `tolerance`."""

    inputs: dict[str, list[list[float]]]
    outputs: dict[str, list[list[float]]]
    tolerance: float = 1e-4


@checked(frozen=True)
class CardType:
    """A VM type that the model was trained for: its cores, price in dollars per hour, and most VMs of it."""

    name: str
    cores: int
    price_per_hour: float
    limit: int


@checked(frozen=True)
class ModelCard:
    """The metadata entry `trimtab` of a model file (autoscaler specification §15.3).

    schema_hash: of the observation it was trained on, `domain.observations.autoscaling.schema_hash`. features, actions:
    in the order of the graph's input and output. feature_low, feature_high: ranges seen in training. golden: inputs to
    try it on. observation, action_set: the kind of each. types: VM types in order of cores. masked: whether it was
    trained with actions of no effect masked. network, hidden_size, memory: its kind, the size of its memory and the
    names of its recurrent inputs. training, evaluation: for the record.
    """

    schema_hash: str
    features: tuple[str, ...]
    actions: tuple[str, ...]
    feature_low: tuple[float, ...]
    feature_high: tuple[float, ...]
    golden: Golden
    observation: Literal["obs-7", "obs-v2"]
    action_set: Literal["act-7", "act-multi"]
    types: tuple[CardType, ...]
    masked: bool
    network: Literal["lstm", "mlp"]
    hidden_size: int = 0
    memory: tuple[str, ...] = ()
    training: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None


SCORER_MEMORY = "scorer"
"""Under this name a scorer's moving averages are kept."""
MOST_TYPES = 12
"""VM types that a scorer decides among: its candidates are made for so many."""


@checked(frozen=True)
class ScorerCard:
    """The metadata entry `trimtab` of a scorer of whole-fleet targets, which fits any fleet.

    voters: networks of its ensemble. cells: numbers in each of its recurrent inputs, MEMORY_OF["lstm"]; 0 without a
    memory that is trained. schema_hash: `scorer_schema`. features, candidate_features: of the graph's inputs
    `state` and `candidates`, in order. feature_low, feature_high: ranges of the state seen in training. margin: by how
    much a candidate's score must beat that of the rule's choice. idle_limit_min: minutes for which VMs beyond the
    minimum may idle before the rule decides. far: the rule decides too where a feature stands beyond its range by more
    than this share of it. branch_min: minutes that the gains in dollars are for. golden: inputs to try it on. training,
    evaluation: for the record.
    """

    form: Literal["scorer"]
    voters: Annotated[int, Field(ge=1)]
    schema_hash: str
    features: tuple[str, ...]
    candidate_features: tuple[str, ...]
    feature_low: tuple[float, ...]
    feature_high: tuple[float, ...]
    margin: NonNegative
    idle_limit_min: NonNegative
    far: NonNegative
    branch_min: NonNegative
    golden: Golden
    cells: Annotated[int, Field(ge=0)] = 0
    training: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None


def recurrent_inputs(card: ScorerCard) -> tuple[str, ...]:
    """Return the names of a scorer's recurrent inputs."""
    return MEMORY_OF["lstm"] if card.cells else ()


def scorer_schema() -> str:
    """Return the schema hash of the scorers that this version runs."""
    return schema_hash((*STATE_FEATURES, *CANDIDATE_FEATURES), SCORER_VERSION)


@dataclass(frozen=True, slots=True)
class Choice:
    """One action: `change` VMs of type `kind` more, or fewer when negative; 0 leaves it, or everything, as it is."""

    kind: int
    change: int


def heads_of(card: ModelCard) -> tuple[tuple[Choice, ...], ...]:
    """Return the choices that the logits stand for: one head for act-7, one per VM type for act-multi.

    ValueError when the card's action list is not that of its action set.
    """
    kinds = len(card.types)
    if card.action_set == "act-7":
        wanted = (NOTHING, *(f"{verb}:{kind}" for kind in range(kinds) for verb in ("add", "remove")))
        if card.actions != wanted:
            raise ValueError(f"its actions are not {', '.join(wanted)}")
        return ((Choice(0, 0), *(Choice(kind, change) for kind in range(kinds) for change in (1, -1))),)
    found = [re.fullmatch(r"(\d{1,3}):([+-]?\d{1,3})", action) for action in card.actions]
    pairs = [(int(pair[1]), int(pair[2])) for pair in found if pair]
    if not pairs or len(pairs) != len(found):
        raise ValueError("its actions are not pairs of a type and a change, such as 0:-5")
    heads = tuple(tuple(Choice(k, pair[1]) for pair in pairs if pair[0] == k) for k in range(kinds))
    in_order = [(choice.kind, choice.change) for head in heads for choice in head]
    if in_order != pairs or any(0 not in [choice.change for choice in head] for head in heads):
        raise ValueError("its actions are not grouped by type, each with a change of 0")
    return heads


def fault_of(card: ModelCard | ScorerCard) -> str:
    """Return what makes the card unusable in this program, "" for nothing."""
    return _fault_of_scorer(card) if isinstance(card, ScorerCard) else _fault_of_network(card)


def _fault_of_scorer(card: ScorerCard) -> str:
    if card.schema_hash != scorer_schema():
        return f"it was trained on features {card.schema_hash[:12]}, this agent makes {scorer_schema()[:12]}"
    if (card.features, card.candidate_features) != (STATE_FEATURES, CANDIDATE_FEATURES):
        return f"its features are not those of {SCORER_VERSION}, in that order"
    if not len(card.features) == len(card.feature_low) == len(card.feature_high):
        return "it has features and ranges of different number"
    return ""


def _fault_of_network(card: ModelCard) -> str:
    kinds = len(card.types)
    extended = card.observation == "obs-v2"
    names = obs_v2_names(kinds) if extended else OBS7_NAMES
    here = schema_hash(names, OBS_V2_VERSION if extended else OBS7_VERSION)
    if not kinds:
        return "it names no VM types"
    if card.schema_hash != here:
        return f"it was trained on observation {card.schema_hash[:12]}, this agent makes {here[:12]}"
    if card.features != names:
        return f"its features are not those of {card.observation}, in that order"
    if not len(card.features) == len(card.feature_low) == len(card.feature_high):
        return "it has features and ranges of different number"
    if [kind.cores for kind in card.types] != sorted(kind.cores for kind in card.types):
        return "its VM types are not in the order of their cores"
    if card.memory != MEMORY_OF[card.network] or (card.hidden_size < 1) != (card.network == "mlp"):
        wanted = ", ".join(MEMORY_OF[card.network]) or "no memory"
        return f"a network of kind {card.network} has {wanted} and a size to match"
    try:
        heads_of(card)
    except ValueError as error:
        return str(error)
    return ""


def misfit(card: ModelCard | ScorerCard, fleet: Fleet) -> str:
    """Return why the model cannot decide for the fleet, "" when it can: types differ in number, cores or limits.

    A scorer fits every fleet of at most MOST_TYPES types.
    """
    if isinstance(card, ScorerCard):
        kinds = len(fleet.groups)
        return "" if kinds <= MOST_TYPES else f"it decides among at most {MOST_TYPES} types; {fleet.name} has {kinds}"
    mine = [f"{kind.limit} of {kind.cores} cores" for kind in card.types]
    theirs = [f"{group.maximum} of {group.vm_type.cores} cores" for group in fleet.groups]
    if mine == theirs:
        return ""
    return f"it was trained for VM types of at most {', '.join(mine)}; the fleet {fleet.name} has {', '.join(theirs)}"


def other_prices(card: ModelCard | ScorerCard, fleet: Fleet) -> str:
    """Return how the fleet's prices differ from those of the training, "" when they do not; it decides all the same."""
    if isinstance(card, ScorerCard):
        return ""
    words = [
        f"{group.key} costs ${group.vm_type.price_per_hour:g} an hour, ${kind.price_per_hour:g} in training"
        for group, kind in zip(fleet.groups, card.types, strict=False)
        if group.vm_type.price_per_hour != kind.price_per_hour
    ]
    return ", ".join(words)
