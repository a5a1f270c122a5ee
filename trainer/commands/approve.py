"""`trimtab approve`: a model on probation decides from now on, or its probation ends, by the word of a person."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from agent.commands.options import JsonOption, LedgerOption, print_json, show
from domain.errors import BadInput, TrimtabError
from trainer.commands.options import KeyOption, ModelsDirOption, epilog

if TYPE_CHECKING:
    from agent.models.directory import Probationer
    from domain.subject import Subject
    from trainer.promotion.directory import ModelsWriter

EPILOG = epilog(
    "",
    calls=(
        "trimtab approve autoscaling web",
        "trimtab approve autoscaling web --reason 'the sale begins tomorrow'",
        "trimtab approve autoscaling web --end 'we keep the rule until the new year'",
    ),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("approve", epilog=EPILOG)(approve)


def approve(
    decision: Annotated[str, Argument(metavar="DECISION", help="autoscaling, admission or oversubscription.")],
    name: Annotated[str, Argument(metavar="SUBJECT", help="A fleet, pool or cluster.")],
    reason: Annotated[str, Option(metavar="TEXT", help="Why; it is kept in the history.")] = "",
    end: Annotated[
        str | None, Option("--end", metavar="REASON", help="End the probation instead; the model is not used.")
    ] = None,
    ledger: LedgerOption = None,
    models_dir: ModelsDirOption = None,
    key_file: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the model decide that is on probation for a subject, also before its hours are over.

    Prints where the recorded proposals differ so far from what decided. The report of the gate that it passed must be
    whole, and the champion must be the one with which it was compared. The way back is `trimtab promote --rollback`.
    """
    from agent.kernel.parts import kinds
    from agent.models.directory import moment_text, read_key
    from agent.settings.location import models_location, promotion_key_location
    from domain.subject import Subject
    from trainer.promotion.directory import ModelsWriter

    known = {kind.name: kind for kind in kinds()}
    if decision not in known:
        raise BadInput("DECISION", decision, f"choose one of {', '.join(sorted(known))}")
    directory = ModelsWriter(
        models_dir or models_location(os.environ), read_key(key_file) or promotion_key_location(os.environ)
    )
    subject, now = Subject(decision, name), moment_text(time.time())
    if end is not None:
        directory.end_probation(subject, end, now)
        told = f"the probation for {subject} is over: {end.strip()}"
        _print(as_json, {"subject": name, "model": None, "ended": end.strip()}, [told])
        return
    one = directory.probationers().get(subject)
    seen = "" if one is None else _divergence(directory, subject, one, ledger)
    champion = directory.approve(subject, now, known[decision].model, reason=reason or "approved by hand")
    lines = [*([seen] if seen else []), f"{champion.model} decides for {subject} now"]
    _print(as_json, {"subject": name, "model": champion.model, "report": champion.report, "divergence": seen}, lines)


def _divergence(directory: ModelsWriter, subject: Subject, one: Probationer, ledger: str | None) -> str:
    """Return where the proposals differ so far; a ledger may be elsewhere."""
    from agent.settings.location import ledger_location

    try:
        return f"so far {_differing(ledger or ledger_location(os.environ), subject, one)}"
    except TrimtabError as error:
        return f"the differences so far are unknown: {error}"


def _differing(source: str, subject: Subject, one: Probationer) -> str:
    from domain.subject import AUTOSCALING

    if subject.decision == AUTOSCALING:
        from trainer.learning import probation

        return probation.divergence_of(source, subject.name, one).sentence
    if subject.decision == "oversubscription":
        from trainer.learning import pool_trial

        return pool_trial.divergence_of(source, subject.name, one)[1]
    from trainer.learning import cluster_trial

    return cluster_trial.divergence_of(source, subject.name, one)[2]


def _print(as_json: bool, data: dict[str, str | None], lines: list[str]) -> None:
    if as_json:
        print_json(data)
    else:
        show(lines)
