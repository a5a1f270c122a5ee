"""Finds the models of fleets: the champion of a directory, a file, or one that comes with the agent.

`learned` is the champion that the models directory names for the fleet, else the one that it names for every fleet
where that fits, else the first shipped model that fits. `model:FILE` is that file. Both become `learned:<sha256>`, the
name under which a decision is recorded. A new champion is taken up at the next tick, and so is a model on probation.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.autoscaling.policies.ppo_lstm import LEARNED, MODEL, LearnedPolicy, sha_of
from agent.autoscaling.policies.scorer import ScorerPolicy
from agent.models.card import ScorerCard, misfit
from agent.models.directory import ModelsDirectory
from agent.models.shelf import Shelf
from agent.models.shipped import DIRECTORY, shipped_models
from domain.errors import BadInput, Mistake
from domain.fleet import Fleet
from domain.subject import AUTOSCALING

if TYPE_CHECKING:
    from agent.models.file import AnyModel

log = structlog.get_logger(__name__)


class ModelUnfit(BadInput):
    """There are sound models, and none of them can decide for the fleet."""


def policy_of(model: AnyModel) -> LearnedPolicy | ScorerPolicy:
    """Return the policy that a verified model of fleets makes."""
    if isinstance(model.card, ScorerCard):
        return ScorerPolicy(model)
    return LearnedPolicy(model)


class ModelShelf(Shelf["AnyModel"]):
    """The models of fleets, from a directory of champions and from those that come with the agent.

    key: with it the report of a champion must be signed with that key. patience_s: see `Shelf`.
    """

    def __init__(
        self,
        directory: Path | None = None,
        shipped: Path = DIRECTORY,
        *,
        key: bytes | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._shipped = shipped
        places = (shipped,) if directory is None else (directory, shipped)
        held = None if directory is None else ModelsDirectory(directory, key)
        super().__init__(held, AUTOSCALING, _load, places, patience_s)

    def resolve(self, text: str, fleet: Fleet) -> str:
        """Return `learned:<sha256>` for any name of a model; BadInput says why there is none."""
        if sha_of(text):
            return text
        name, _, rest = text.partition(":")
        if name == MODEL:
            return policy_of(self.load(Path(rest))).name
        if rest:
            raise BadInput("policy", text, f"give {LEARNED}, {LEARNED}:<sha256> or {MODEL}:FILE")
        self.look()
        return policy_of(self._for(fleet)).name

    def policy(self, text: str, fleet: Fleet) -> LearnedPolicy | ScorerPolicy:
        """Return the policy of that name; BadInput says why it cannot be had."""
        return policy_of(self.model(sha_of(self.resolve(text, fleet))))

    def check(self, text: str, fleet: Fleet) -> None:
        """Raise BadInput when the name leads to no model, ModelUnfit when none that it leads to fits the fleet."""
        unfit = misfit(self.policy(text, fleet).model.card, fleet)
        if unfit:
            raise ModelUnfit("learned policy", text, f"{unfit}: name a model trained for the fleet, or another policy")

    def origin(self, text: str, fleet: Fleet) -> str:
        """Return what lets the model of that name decide: a promotion, the reason why it was forced, or its place."""
        if text != LEARNED:
            return "forced: its file is named in the settings"
        model = self._for(fleet)
        for subject in (fleet.name, ""):
            if self.champions.get(subject) is model:
                return f"forced: {self.forced[subject]}" if self.forced.get(subject) else "promoted"
        return "it comes with the agent"

    def probationer(self, fleet_name: str) -> str | None:
        """Return `learned:<sha256>` of the model on probation for the fleet, None for none or one that is refused.

        One for all fleets is on probation for those that have no champion of their own.
        """
        self.look()
        found = self.probationers.get(fleet_name)
        if found is None and fleet_name not in self.champions:
            found = self.probationers.get("")
        return None if found is None else policy_of(found).name

    def fits(self, text: str, fleet: Fleet) -> bool:
        """Return whether the name leads to a model that can decide for the fleet."""
        try:
            self.check(text, fleet)
        except BadInput:
            return False
        return True

    def unfit(self, named: Iterable[tuple[str, str, Fleet]]) -> list[Mistake]:
        """Return a mistake for every setting whose policy none of the models at hand can decide for.

        named: setting, policy and fleet. A model that is damaged, or that is not ready in time, is no mistake of the
        settings: it may come, and the rules stand in until then.
        """
        mistakes = []
        for setting, text, fleet in named:
            try:
                self.check(text, fleet)
            except ModelUnfit as unfit:
                mistakes.append(Mistake(setting, text, unfit.remedy))
            except BadInput as error:
                log.warning("model_refused", fleet=fleet.name, detail=str(error))
        return mistakes

    def _for(self, fleet: Fleet) -> AnyModel:
        champion = self.own(fleet.name)
        if champion is None:
            return self._first_shipped(fleet, "")
        unfit = misfit(champion.card, fleet)
        if fleet.name in self.champions or not unfit:
            return champion
        return self._first_shipped(fleet, f"the champion: {unfit}")

    def _first_shipped(self, fleet: Fleet, of_champion: str) -> AnyModel:
        why = [of_champion] if of_champion else []
        for shipped in shipped_models(self._shipped):
            model = self.load(shipped.path)
            unfit = misfit(model.card, fleet)
            if not unfit:
                return model
            why.append(f"{shipped.name}: {unfit}")
        tried = "; ".join(why) or "no model comes with this version"
        remedy = f"promote a model trained for the fleet, or name a file by {MODEL}:FILE ({tried})"
        raise ModelUnfit("learned policy", "a champion that does not fit" if of_champion else "no champion", remedy)


def _load(path: Path) -> AnyModel:
    # ONNX Runtime costs a third of a second and 30 MB: only who has a model pays for it.
    from agent.models.file import load_model

    return load_model(path)
