"""`trimtab replay`: recorded decisions decided again, by the same policy or by another."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import (
    FleetOption,
    JsonOption,
    LedgerOption,
    ModelsOption,
    examples,
    models_directory,
    moment,
    print_json,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.autoscaling.replay import Recorded, Summary
    from agent.models.shelf import ModelShelf

MOST_LINES = 40
"""Differing minutes printed as text; --json has all."""


def replay(
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
    from agent.autoscaling.policies.ppo_lstm import names_model
    from agent.autoscaling.policies.registry import policy_from_name
    from agent.commands.ledger import one_fleet, open_ledger
    from agent.models.shelf import ModelShelf
    from agent.settings.location import promotion_key_location

    now = time.time()
    if policy is not None and not names_model(policy):
        policy = policy_from_name(policy).name
    shelf = ModelShelf(models_directory(models), key=promotion_key_location(os.environ))
    with open_ledger(ledger) as book:
        name = one_fleet(fleet, book.fleets())
        records = book.inputs(
            name,
            None if since is None else moment("--from", since, now),
            None if until is None else moment("--to", until, now),
        )
        if policy is None:
            _same(name, records, shelf, as_json)
        else:
            _other(name, records, policy, shelf, as_json)


def _same(fleet: str, records: Iterable[Recorded], shelf: ModelShelf, as_json: bool) -> None:
    from agent.autoscaling.replay import replay as replayed

    count = 0
    for item in replayed(records, shelf):
        if not item.same:
            difference = item.difference()
            if as_json:
                print_json({"fleet": fleet, "same": count, "differs": item.recorded.decision_id, "diff": difference})
            else:
                typer.echo(f"{count} decisions are the same; {item.recorded.decision_id} differs:\n{difference}")
            raise typer.Exit(1)
        count += 1
    if as_json:
        print_json({"fleet": fleet, "same": count, "differs": None})
    else:
        typer.echo(f"{fleet}: {count} decisions, all the same byte for byte")


def _other(fleet: str, records: Iterable[Recorded], policy: str, shelf: ModelShelf, as_json: bool) -> None:
    from agent.autoscaling.explain import sizes
    from agent.autoscaling.replay import summaries, what_if
    from agent.commands.output import show

    items = list(what_if(records, policy, shelf))
    differing = [item for item in items if item.differs]
    recorded, other = summaries(items)
    if as_json:
        print_json(
            {
                "fleet": fleet,
                "policy": policy,
                "minutes": len(items),
                "differing": [
                    {
                        "id": item.recorded.decision_id,
                        "at": item.recorded.at,
                        "recorded": list(item.recorded.desired),
                        "other": list(item.other.desired),
                        "sentence": item.other.sentence,
                    }
                    for item in differing
                ],
                "recorded": _data(recorded),
                "other": _data(other),
            }
        )
        return
    rows: list[tuple[object, ...]] = []
    for item in differing[:MOST_LINES]:
        requested = item.inputs.snapshot.requested if item.inputs.snapshot is not None else ()
        was, would = (sizes(item.inputs.fleet, requested, d.desired) for d in (item.recorded, item.other))
        rows.append((item.recorded.decision_id, time_text(item.recorded.at), was, would, item.other.sentence))
    show(_table(policy, rows, len(items), len(differing), recorded, other))


def _table(
    policy: str, rows: Sequence[tuple[object, ...]], minutes: int, differing: int, recorded: Summary, other: Summary
) -> list[str]:
    from agent.commands.output import columns

    lines = [f"{policy} on {minutes} recorded minutes: {differing} come out differently"]
    if rows:
        lines += columns([("decision", "at", "recorded", "would be", "why"), *rows])
    if differing > len(rows):
        lines.append(f"  and {differing - len(rows)} more (--json has all)")
    lines += ["", "As decided, minute by minute, each from the sizes that were really there:"]
    head = ("", "VM-hours", "dollars", "scale-outs", "scale-ins")
    both = [("recorded", recorded), ("would be", other)]
    body = [(name, f"{s.vm_hours:.2f}", f"{s.dollars:.3f}", s.outs, s.ins) for name, s in both]
    return lines + columns([head, *body])


def _data(summary: Summary) -> dict[str, float]:
    return {
        "vm_hours": summary.vm_hours,
        "dollars": summary.dollars,
        "scale_outs": summary.outs,
        "scale_ins": summary.ins,
    }


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    app.command(
        epilog=examples("trimtab replay --from 2h", "trimtab replay --policy threshold:high=0.75,low=0.5,periods=3")
    )(replay)
