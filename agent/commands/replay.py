"""`trimtab replay`: recorded decisions decided again, by the same policy or by another."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import (
    DecisionArgument,
    FleetOption,
    JsonOption,
    LedgerOption,
    ModelsOption,
    SubjectArgument,
    app,
    examples,
    models_environment,
    moment,
    print_json,
    show,
)
from domain.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.kernel.decision import Part, ReplayResult
    from agent.kernel.parts import Parts


@app.command(
    epilog=examples(
        "trimtab replay --from 2h --policy threshold:high=0.75,low=0.5,periods=3",
        "trimtab replay oversubscription main",
    )
)
def replay(
    decision: DecisionArgument = None,
    subject: SubjectArgument = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="NAME[:p=v,...]", help="Another policy: what would it have decided?"),
    ] = None,
    since: Annotated[str | None, typer.Option("--from", help="Not before: 2026-03-01T12:00, or 2h ago.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Before: the same.")] = None,
    fleet: FleetOption = None,
    ledger: LedgerOption = None,
    models: ModelsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide recorded minutes again: the same policy must give the same bytes; another shows what it would have done.

    Exits 1 at the first decision that comes out differently under its own policy.
    """
    from agent.commands.ledger import open_parts

    now = time.time()
    start = None if since is None else moment("--from", since, now)
    end = None if until is None else moment("--to", until, now)
    with open_parts(ledger, models_environment(models, os.environ)) as parts:
        part, name = _meant(parts, decision, subject, fleet)
        if policy is None:
            _same(part.subject_word, name, part.replay(name, start, end), as_json)
        else:
            other = part.what_if(name, policy, start, end)
            print_json(other.data) if as_json else show(other.lines)


def _meant(parts: Parts, decision: str | None, subject: str | None, fleet: str | None) -> tuple[Part, str]:
    """Return the one subject meant; without any name the fleet of which the ledger has decisions."""
    from agent.commands.ledger import chosen
    from agent.kernel.decision import one_of
    from domain.subject import AUTOSCALING

    first = parts.named(AUTOSCALING)
    recorded = first.decisions.subjects(first.name)
    if decision in (None, first.name) and subject is None and (recorded or fleet is not None):
        return first, one_of(fleet, recorded, first.subject_word, field="--fleet")
    found = chosen(parts, decision, subject)
    if len(found) != 1:
        there = ", ".join(f"{part.name} {name}" for part, name in found)
        remedy = f"name one of: {there}" if there else "neither the ledger nor the settings know any: start the agent"
        raise BadInput("SUBJECT", subject or "", remedy)
    return found[0]


def _same(word: str, name: str, again: Iterable[ReplayResult], as_json: bool) -> None:
    """Count the decisions that come out the same; exits 1 at the first that does not."""
    same, exactly = 0, ""
    for one in again:
        if not one.same:
            if as_json:
                print_json({word: name, "same": same, "differs": one.decision_id, "diff": one.difference})
            else:
                typer.echo(f"{same} decisions are the same; {one.decision_id} differs:\n{one.difference}")
            raise typer.Exit(1)
        same, exactly = same + 1, " byte for byte" if one.exact else ""
    if as_json:
        print_json({word: name, "same": same, "differs": None})
    else:
        typer.echo(f"{name}: {same} decisions, all the same{exactly}")
