"""A learned policy of rates from its ONNX file: checked when it is read, and never believed blindly (§13, §14).

The file is what `trimtab train oversubscription --method vdn` writes, named after its SHA-256: inputs `cluster` and
`local`, output `q` (1, N, levels), of which each subscriber takes the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from agent.models.file import GOLDEN_DEADLINE_S, first_line, open_model, refused, run_within
from agent.oversubscription.observation import Sight, observation_of
from agent.oversubscription.rules import PoolRules, SubscriberRules
from domain.errors import BadInput
from domain.observations.oversubscription import OBS_O_EXT_VERSION, OBS_O_VERSION, SCALE
from domain.rules.oversubscription.rates import check_actions

if TYPE_CHECKING:
    import onnxruntime

KIND: Final = "oversubscription-values"
EXTENDED: Final = "obs-o-ext"
TOLERANCE: Final = 1e-3
Rows = NDArray[np.float32]


@checked(frozen=True, config=ConfigDict(extra="ignore"))
class GoldenRows:
    """Inputs and what the trainer answered to them."""

    cluster: list[list[float]]
    local: list[list[list[float]]]
    q: list[list[list[float]]]


@checked(frozen=True, config=ConfigDict(extra="ignore"))
class RateCard:
    """What a file says of itself, as far as the agent goes by it."""

    kind: Literal["oversubscription-values"]
    version: Literal[1]
    observation: Literal["obs-o", "obs-o-ext"]
    observation_version: str
    observation_scale: float
    subscribers: Annotated[int, Field(ge=1)]
    actions: tuple[float, ...]
    golden: GoldenRows


@dataclass(frozen=True, slots=True, eq=False)
class RateModel:
    """A verified model; `name` is the SHA-256 of its file, `order` the subscribers in the places of its rows."""

    name: str
    card: RateCard
    order: tuple[str, ...]
    session: onnxruntime.InferenceSession

    def rates(self, sight: Sight) -> Mapping[str, float]:
        """Return each subscriber's rate; BadInput when the model answers with what is no number."""
        cluster, local = observation_of(sight, self.order, extended=self.card.observation == EXTENDED)
        try:
            q = answered(self.session, cluster, local)
        except Exception as error:
            # Whatever ONNX Runtime raises: the pool's turn goes on without the model.
            raise BadInput(
                "model", self.name[:12], f"it fails ({first_line(error)}): go back to the one before"
            ) from None
        if not np.isfinite(q).all():
            raise BadInput("model", self.name[:12], "it answers with what is no number: go back to the one before")
        return dict(zip(self.order, (self.card.actions[k] for k in q[0].argmax(axis=1).tolist()), strict=True))


def load_rate_model(path: Path, rules: PoolRules) -> RateModel:
    """Read, verify and try a model file for a pool; ModelRefused, a BadInput, names what is wrong and what to do."""
    order = places_of(rules.subscribers)
    name, session, text = open_model(path)
    try:
        card = TypeAdapter(RateCard).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise refused(path, f"its card is wrong, {where}: {first['msg'].lower()}; export it anew") from None
    check_actions(card.actions)
    here = OBS_O_EXT_VERSION if card.observation == EXTENDED else OBS_O_VERSION
    if (card.observation_version, card.observation_scale) != (here, SCALE):
        raise refused(path, f"it was trained on observation {card.observation_version}, this program makes {here}")
    if card.subscribers != len(order):
        told = f"it is for {card.subscribers} subscribers, {len(order)} of the pool have a MODEL_PLACE"
        raise refused(path, f"{told}: train it anew, or place them")
    if card.actions != rules.actions:
        raise refused(path, f"its levels are {list(card.actions)}, the pool's {list(rules.actions)}: train it anew")
    _try_golden(path, card, session)
    return RateModel(name, card, order, session)


def places_of(subscribers: Mapping[str, SubscriberRules]) -> tuple[str, ...]:
    """Return the subscribers in the order of their places in a model; BadInput for a place missing or taken twice."""
    placed = sorted((own.model_place, name) for name, own in subscribers.items() if own.model_place is not None)
    if [place for place, _ in placed] != list(range(len(placed))) or not placed:
        told = ", ".join(f"{name} {place}" for place, name in placed) or "none"
        remedy = f"give the subscribers the places 0, 1, ... of the model's, each once; they have: {told}"
        raise BadInput("model_place", told, remedy)
    return tuple(name for _, name in placed)


def answered(session: onnxruntime.InferenceSession, cluster: Rows, local: Rows) -> Rows:
    """Return q for rows of what is seen; TimeoutError when the graph does not end."""
    (q,) = run_within(session, ["q"], {"cluster": cluster, "local": local}, GOLDEN_DEADLINE_S)
    return q


def _try_golden(path: Path, card: RateCard, session: onnxruntime.InferenceSession) -> None:
    golden = card.golden
    wanted = np.array(golden.q, np.float32)
    try:
        found = answered(session, np.array(golden.cluster, np.float32), np.array(golden.local, np.float32))
    except Exception as error:
        raise refused(path, f"it fails on its golden inputs ({first_line(error)}): export it anew") from None
    shape: Sequence[int] = (len(golden.local), card.subscribers, len(card.actions))
    # Written so that nan does not pass.
    if found.shape != tuple(shape) or wanted.shape != found.shape or not (np.abs(found - wanted) <= TOLERANCE).all():
        raise refused(path, "its answer to the golden inputs is not the trainer's: export it anew")
