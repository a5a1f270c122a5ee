"""`trimtab promote deferral`: a model may lead in a deferral pool if it earns more than the rolling plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trainer.commands.options import Bounds, WorkersOption, epilog
from trainer.commands.promote import Promotion

if TYPE_CHECKING:
    from trainer.promotion.gate import Gate


@dataclass(frozen=True, kw_only=True)
class PromoteDeferral(Promotion):
    """Let a model lead in a deferral pool if it surely earns more than the policy in use, and than the rolling plan.

    The model is what `trimtab train deferral` exported. It decides where the pool's policy is `learned`; the agent
    takes it up with its next step.
    """

    DECISION = "deferral"
    EPILOG = epilog(
        """
The gate: episodes that no training, choice or report plays.
  it earns more than the policy in use, in 95 % of paired bootstrap resamples;
  likewise more than the rolling plan, which needs no training;
  in the mean of no scenario less than FIFO that skips.
  Else the policy in use stays, and the exit status is 1.
""",
        calls=(
            "trimtab promote deferral main MODEL.onnx --scenario mine.toml",
            "trimtab promote deferral main MODEL.onnx --scenario valley --workers 2 --try",
            "trimtab promote deferral main --rollback",
        ),
    )

    scenario: Annotated[list[str] | None, "NAME|FILE", "As `trimtab evaluate deferral` has them; repeatable."] = None
    trace: Annotated[list[str] | None, "SCENARIO,LOG", "Recorded load and jobs; repeatable."] = None
    episodes: Annotated[int, "Episodes of each scenario.", Bounds(min=8, max=1000)] = 30
    workers: WorkersOption = 1

    def verify(self, path: Path) -> object:
        """Raise ModelRefused for a file without a model of a pool."""
        from agent.deferral.model import load_score_model

        return load_score_model(path)

    def gate(self) -> Gate:
        """Return episodes of the scenarios and traces."""
        from trainer.deferral.evaluation import subjects_of
        from trainer.promotion.deferral import deferral_gate
        from trainer.promotion.gate import Limits

        subjects = subjects_of(self.scenario or ([] if self.trace else ["valley"]), self.trace or [])
        facts = {"scenarios": [one.name for one in subjects]}
        return deferral_gate(subjects, self.episodes, Limits(), workers=self.workers, facts=facts, quiet=self.as_json)
