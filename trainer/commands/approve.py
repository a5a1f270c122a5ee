"""`trimtab approve`: a model on probation decides from now on, or its probation ends, by the word of a person."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from typer import Argument

from agent.commands.options import LedgerOption
from domain.errors import BadInput, TrimtabError
from trainer.commands.endings import STATUSES_OF_FAULTS
from trainer.commands.options import epilog
from trainer.commands.verb import Answer, ModelsVerb

if TYPE_CHECKING:
    from agent.models.directory import Probationer
    from domain.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Approve(ModelsVerb):
    """Let the model decide that is on probation for a subject, also before its hours are over.

    Prints where the recorded proposals differ so far from what decided. The report of the gate that it passed must be
    whole, and the champion must be the one with which it was compared. The way back is `trimtab promote --rollback`.
    """

    EPILOG = epilog(
        f"\nExit status:\n  2  bad input\n{STATUSES_OF_FAULTS}",
        calls=(
            "trimtab approve autoscaling web",
            "trimtab approve autoscaling web --reason 'the sale begins tomorrow'",
            "trimtab approve queue-rule web",
            "trimtab approve autoscaling web --end 'we keep the rule until the new year'",
        ),
    )

    decision: Annotated[str, Argument(metavar="DECISION", help="The decision, such as autoscaling.")]
    name: Annotated[str, Argument(metavar="SUBJECT", help="A fleet, cluster or pool.")]
    reason: Annotated[str, "TEXT", "Why; it is kept in the history."] = ""
    end: Annotated[str | None, "REASON", "End the probation instead; the model is not used."] = None
    ledger: LedgerOption = None

    def run(self) -> Answer:
        """Approve the model, or end its probation."""
        from agent.kernel.parts import kinds
        from agent.models.directory import moment_text
        from domain.subject import QUEUE_RULE, Subject
        from trainer.commands.promote_queue_rule import check_follows, rule_of

        known = {kind.name: kind.model for kind in kinds()} | {QUEUE_RULE: partial(rule_of, self.name)}
        if self.decision not in known:
            raise BadInput("DECISION", self.decision, f"choose one of {', '.join(sorted(known))}")
        directory, subject, now = self.models, Subject(self.decision, self.name), moment_text(time.time())
        if self.end is not None:
            directory.end_probation(subject, self.end, now)
            why = self.end.strip()
            line = f"the probation for {subject} is over: {why}"
            return Answer({"subject": self.name, "model": None, "ended": why}, [line])
        if self.decision == QUEUE_RULE:
            check_follows(self.name)
        one = directory.probationers().get(subject)
        # A placement pool and deferral record no proposals of a model on probation.
        seen = "" if one is None or subject.decision not in COMPARED else _divergence(subject, one, self.ledger)
        reason = self.reason or "approved by hand"
        champion = directory.approve(subject, now, known[self.decision], reason=reason)
        data = {"subject": self.name, "model": champion.model, "report": champion.report, "divergence": seen}
        return Answer(data, [*([seen] if seen else []), f"{champion.model} decides for {subject} now"])


COMPARED: Final = ("autoscaling", "admission", "oversubscription")
"""Decisions that record the proposals of a model on probation."""


def _divergence(subject: Subject, one: Probationer, ledger: str | None) -> str:
    """Return where the proposals differ so far; a ledger may be elsewhere."""
    from agent.settings.location import ledger_location

    try:
        return f"so far {_differing(ledger or ledger_location(os.environ), subject, one)}"
    except TrimtabError as error:
        return f"the differences so far are unknown: {error}"


def _differing(source: str, subject: Subject, one: Probationer) -> str:
    from domain.subject import AUTOSCALING

    if subject.decision == AUTOSCALING:
        from trainer.learning import fleet_trial

        return fleet_trial.divergence_of(source, subject.name, one).sentence
    if subject.decision == "oversubscription":
        from trainer.learning import pool_trial

        return pool_trial.divergence_of(source, subject.name, one)[1]
    from trainer.learning import cluster_trial

    return cluster_trial.divergence_of(source, subject.name, one)[2]
