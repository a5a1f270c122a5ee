"""A learned policy of rates from its ONNX file: checked when it is read, and never believed blindly (§13, §14).

The file is what `trimtab train oversubscription --method vdn` writes, named after its SHA-256: inputs `cluster` and
`local`, output `q` (1, N, levels), of which each subscriber takes the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

from agent.models.directory import refused
from agent.models.file import GOLDEN_DEADLINE_S, card_in, first_line, open_model, run_within, try_golden
from agent.oversubscription.observation import Sight, observation_of
from agent.oversubscription.settings import places_of
from domain.errors import BadInput
from domain.observations.oversubscription import OBS_O_EXT_VERSION, OBS_O_VERSION, SCALE
from domain.rules.oversubscription.pool import PoolRules
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
    value: list[list[float]] | None = None


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
            (q,) = run_within(self.session, ["q"], {"cluster": cluster, "local": local}, GOLDEN_DEADLINE_S)
        except Exception as error:
            # Whatever ONNX Runtime raises: the pool's turn goes on without the model.
            raise BadInput(
                "model", self.name[:12], f"it fails ({first_line(error)}): go back to the one before"
            ) from None
        if not np.isfinite(q).all():
            raise BadInput("model", self.name[:12], "its output is not finite: roll it back")
        return dict(zip(self.order, (self.card.actions[k] for k in q[0].argmax(axis=1).tolist()), strict=True))


def load_rate_model(path: Path, rules: PoolRules) -> RateModel:
    """Read, verify and try a model file for a pool; ModelRefused, a BadInput, names what is wrong and what to do."""
    order = places_of(rules.subscribers)
    name, card, session = open_rate_model(path)
    if card.subscribers != len(order):
        why = f"it is for {card.subscribers} subscribers, {len(order)} of the pool have a MODEL_PLACE"
        raise refused(path, f"{why}: train it again, or place them")
    if card.actions != rules.actions:
        raise refused(path, f"its levels are {list(card.actions)}, the pool's {list(rules.actions)}: train it again")
    return RateModel(name, card, order, session)


def open_rate_model(path: Path) -> tuple[str, RateCard, onnxruntime.InferenceSession]:
    """Return the SHA-256, card and session of a model file, tried on its golden inputs; ModelRefused."""
    name, session, text = open_model(path)
    card = card_in(path, text, RateCard)
    check_actions(card.actions)
    here = OBS_O_EXT_VERSION if card.observation == EXTENDED else OBS_O_VERSION
    if (card.observation_version, card.observation_scale) != (here, SCALE):
        raise refused(path, f"it was trained on observation {card.observation_version}, this program makes {here}")
    golden = card.golden
    shape = (len(golden.local), card.subscribers, len(card.actions))
    if np.shape(golden.q) != shape:
        raise refused(path, f"its golden q are not of shape {shape}: export it again")
    outputs = {"q": golden.q} | ({} if golden.value is None else {"value": golden.value})
    try_golden(path, session, {"cluster": golden.cluster, "local": golden.local}, outputs, TOLERANCE)
    return name, card, session
