"""The learned policy of a pool as a rung of its ladder: the model in use, if it is the one that the pin names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.deferral.ladder import Floats, Starts
from agent.deferral.settings import DeferralSettings
from agent.models.directory import ModelsDirectory, Subject
from domain.errors import PolicyFailure, TrimtabError
from domain.rules.deferral.choosing import View

if TYPE_CHECKING:
    from agent.deferral.model import ScoreModel


class LearnedRung:
    """Reads the model in use where it changed, and asks it; called by the loop's thread and a shadow's alike.

    problem: why there is none to ask, "" where there is one. A model whose scores were no numbers is not asked again
    until another one is in use, or `look` is told to read it anew.
    """

    def __init__(self, pool: str, settings: DeferralSettings, models: ModelsDirectory) -> None:
        self._subject, self._pin, self._models = Subject("deferral", pool), settings.model_pin, models
        self._model: ScoreModel | None = None
        self.problem = "no model was looked for yet"

    @property
    def digest(self) -> str:
        """The digest of the model that is asked, "" where there is none."""
        return "" if self._model is None else self._model.name

    def look(self, *, anew: bool = False) -> None:
        """Read the model in use; one that is refused leaves none, and the next policy decides."""
        from agent.deferral.model import load_score_model

        try:
            champion = self._models.champion(self._subject)
            if champion is None:
                self._model, self.problem = None, "no model is in use: put one in use by trimtab promote deferral"
                return
            digest = champion.model.removesuffix(".onnx")
            if self._pin and not digest.startswith(self._pin):
                self._model, self.problem = None, f"the model in use, {digest[:12]}, is not the pinned {self._pin[:12]}"
                return
            if self._model is not None and self._model.name == digest and not anew:
                self.problem = self._model.fault
                return
            self._models.check(self._subject, champion)
            self._model, self.problem = load_score_model(self._models.file_of(champion.model)), ""
        except (TrimtabError, OSError) as error:
            self._model, self.problem = None, f"the model is refused: {error}"

    def __call__(self, view: View, path: Floats, budget_s: float) -> Starts | None:
        """Start what the model's scores say; ScoresUnusable where they are no numbers."""
        model = self._model
        if model is None:
            raise PolicyFailure(self.problem)
        scores = model.score(view).scores
        return Starts(model.starts(view, scores), scores)
