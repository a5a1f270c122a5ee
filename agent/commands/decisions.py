"""`trimtab status`, `explain` and `decisions`: subjects as the ledger knows them, and what was decided on them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import (
    DecisionArgument,
    FleetOption,
    JsonOption,
    LedgerOption,
    SubjectArgument,
    app,
    examples,
    moment,
    print_json,
    show,
)
from agent.kernel.text import columns, time_text

if TYPE_CHECKING:
    from agent.kernel.parts import Parts

LAST = "last"


@app.command(epilog=examples("trimtab status", "trimtab status autoscaling web --json"))
def status(
    decision: DecisionArgument = None,
    subject: SubjectArgument = None,
    fleet: FleetOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show each fleet, cluster and pool: what it is like, its last decision, and what holds it."""
    from agent.commands.ledger import chosen, open_parts

    now = time.time()
    with open_parts(ledger) as parts:
        found = list(parts.statuses(chosen(parts, decision, subject, fleet), now))
        words = {part.name: f"{part.subject_word}s" for part in parts}
    if as_json:
        by_word: dict[str, list[object]] = {word: [] for word in words.values()}
        for part, one in found:
            by_word[words[part.name]].append(one.data)
        print_json({"at": now, **by_word})
        return
    lines: list[str] = []
    for _, one in found:
        lines += [*one.lines, ""]
    show(lines[:-1] or ["nothing was decided yet, and the settings describe no fleet, cluster or pool"])


@app.command(epilog=examples("trimtab explain last", "trimtab explain web-17 --json"))
def explain(
    decision: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Decision: web-17, w-17, 17, an intent's id, or `last`; a fleet, cluster or pool for its last; "
            "main-a17: an admission; main-o17: a rate; main-p17: a placement.",
        ),
    ] = LAST,
    fleet: FleetOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a decision: inputs, proposal, each rail, intents and what AWS did.

    For an admission: the rule, the time with the least room, and the deployments that fill it. For a rate: the levels
    that were looked at, the risk, and whether the same comes out again. For a placement: the best hosts with the terms
    of their scores, and why other hosts were not feasible.
    """
    from agent.commands.ledger import open_parts
    from agent.kernel.decision import one_subject
    from agent.kernel.store import DecisionStore
    from domain.errors import BadInput
    from domain.subject import AUTOSCALING

    with open_parts(ledger) as parts:
        wanted, of = decision, None
        if wanted == LAST:
            if fleet is not None:
                of = (AUTOSCALING, one_subject(parts.named(AUTOSCALING), fleet, field="--fleet"))
        elif parts.called(wanted):
            part, name = parts.meant(wanted, field="ID")
            of = (part.name, name)
        if wanted == LAST or of is not None:
            newest = DecisionStore(parts.ledger.database).newest(*(of or ()), limit=1)
            if not newest:
                whose = "" if of is None else f" on {'/'.join(of)}"
                raise BadInput("ID", decision, f"no decision{whose} is recorded yet: see trimtab status")
            wanted = newest[0].decision_id
        part, record = parts.find(meant(parts, wanted, fleet))
        explained = part.explain(record)
    if as_json:
        print_json(explained.data)
    else:
        show(explained.lines)


def meant(parts: Parts, wanted: str, fleet: str | None) -> str:
    """Return the id that a number, an intent's id, or the beginning of a fleet's name and a number means."""
    from agent.kernel.decision import one_subject
    from domain.subject import AUTOSCALING

    fleets = parts.named(AUTOSCALING)
    if wanted.isdigit():
        return f"{one_subject(fleets, fleet, field='--fleet')}-{wanted}"
    decision_id = wanted.partition(".")[0]
    name, _, number = decision_id.rpartition("-")
    names = fleets.subjects()
    starting = [known for known in names if name and known.startswith(name)]
    if name not in names and len(starting) == 1 and number.isdigit():
        return f"{starting[0]}-{number}"
    return decision_id


@app.command(
    epilog=examples("trimtab decisions --changed --limit 10", "trimtab decisions autoscaling web --from 2h --json")
)
def decisions(
    decision: DecisionArgument = None,
    subject: SubjectArgument = None,
    fleet: FleetOption = None,
    is_changed: Annotated[bool, typer.Option("--changed", help="Only decisions that caused an action.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Most decisions shown, the newest.")] = 20,
    since: Annotated[str | None, typer.Option("--from", help="Not before: 2026-03-01T12:00, or 2h ago.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Before: the same.")] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List decisions on fleets, clusters and pools, the newest last."""
    from agent.commands.ledger import chosen, open_parts
    from agent.kernel.store import DecisionStore
    from agent.ledger import codec

    now = time.time()
    with open_parts(ledger) as parts:
        named = chosen(parts, decision, subject, fleet) if (decision, subject, fleet) != (None, None, None) else None
        wanted = [(part.name, name) for part, name in named] if named is not None else [(None, None)]
        store = DecisionStore(parts.ledger.database)
        found = [
            record
            for part_name, name in wanted
            for record in store.newest(
                part_name,
                name,
                since=None if since is None else moment("--from", since, now),
                until=None if until is None else moment("--to", until, now),
                limit=limit,
                changed_only=is_changed,
            )
        ]
        found = sorted(found, key=lambda record: (record.at, record.decision_id))[-limit:]
        rows = [(record, parts.summary(record)) for record in found]
    if as_json:
        print_json([{"decision": record.decision, **codec.decode_mapping(record.body)} for record, _ in rows])
        return
    lines = columns([(record.decision_id, time_text(record.at), one.sentence) for record, one in rows], indent="")
    show(lines or ["no decision is recorded" + (" that led to anything to do" if is_changed else "")])
