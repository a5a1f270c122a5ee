"""`trimtab decisions`: the decisions in a list."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from agent.commands.options import FleetOption, JsonOption, LedgerOption, examples, moment, print_json, time_text


def decisions(
    fleet: FleetOption = None,
    is_changed: Annotated[bool, typer.Option("--changed", help="Only those that led to something to do.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Most decisions shown, the newest.")] = 20,
    since: Annotated[str | None, typer.Option("--from", help="Not before: 2026-03-01T12:00, or 2h ago.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Before: the same.")] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List decisions, the newest last."""
    from agent.autoscaling.explain import plain
    from agent.commands.ledger import fleets, one_fleet, open_ledger
    from agent.commands.output import columns, show

    now = time.time()
    with open_ledger(ledger) as book:
        rows = book.decisions(
            one_fleet(fleet, fleets(book)) if fleet else None,
            since=None if since is None else moment("--from", since, now),
            until=None if until is None else moment("--to", until, now),
            limit=limit,
            changed_only=is_changed,
        )
    rows.reverse()
    if as_json:
        print_json([{"seq": row.seq, **plain(row.decision)} for row in rows])
        return
    lines = columns(
        [(row.decision.decision_id, time_text(row.decision.at), row.decision.sentence) for row in rows], indent=""
    )
    show(lines or ["no decision is recorded" + (" that led to anything to do" if is_changed else "")])


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    app.command(
        epilog=examples("trimtab decisions --changed --limit 10", "trimtab decisions --fleet web --from 2h --json")
    )(decisions)
