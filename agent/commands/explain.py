"""`trimtab explain`: why one decision came out as it did."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import FleetOption, JsonOption, LedgerOption, examples, print_json, time_text

if TYPE_CHECKING:
    from agent.autoscaling.explain import Explanation
    from agent.ledger import DecisionRecord, Ledger
    from domain.fleet import Fleet
    from domain.snapshot import Snapshot

LAST = "last"


def explain(
    decision: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Decision: web-17, w-17, 17, an intent's id, `last`, or a fleet for its last; main-a17: an admission; "
            "main-o17: a rate.",
        ),
    ] = LAST,
    fleet: FleetOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell why a decision came out as it did: inputs, proposal, each rail, intents and what AWS did.

    For an admission: the rule, the time with the least room, and the deployments that fill it. For a rate: the levels
    that were looked at, the risk, and whether the same comes out again.
    """
    from agent.autoscaling.explain import as_data, plain
    from agent.autoscaling.explain import explain as explained
    from agent.commands.admission_text import admission_lines
    from agent.commands.ledger import open_ledger
    from agent.commands.output import show
    from agent.commands.oversubscription_text import rate_lines

    with open_ledger(ledger) as book:
        admission = book.admission.find(decision)
        rates = book.oversubscription.find(decision) if admission is None else None
        if admission is not None:
            data, lines = plain(admission), admission_lines(admission)
        elif rates is not None:
            data, lines = plain(rates), rate_lines(rates, book.oversubscription.inputs(decision))
        else:
            record = found(book, decision, fleet)
            data, lines = as_data(record), text(explained(record), record)
    if as_json:
        print_json(data)
    else:
        show(lines)


def found(ledger: Ledger, wanted: str, fleet: str | None) -> DecisionRecord:
    """Return the decision that `last`, a number, an id or the beginning of a fleet's name and a number means."""
    from agent.commands.ledger import one_fleet
    from domain.errors import BadInput

    names = ledger.fleets()
    if wanted not in names and re.fullmatch(r".+-a\d+", wanted):
        remedy = "no admission is recorded under it; `trimtab cluster show` lists the newest"
        raise BadInput("ID", wanted, remedy)
    if wanted in names:
        fleet, wanted = wanted, LAST
    if wanted == LAST:
        rows = ledger.decisions(one_fleet(fleet, names) if fleet else None, limit=1)
        if not rows:
            raise BadInput("ID", wanted, "no decision is recorded yet")
        return ledger.decision(rows[0].decision.decision_id)
    if wanted.isdigit():
        return ledger.decision(f"{one_fleet(fleet, names)}-{wanted}")
    decision_id = wanted.partition(".")[0]
    name, _, number = decision_id.rpartition("-")
    meant = [known for known in names if name and known.startswith(name)]
    if name not in names and len(meant) == 1 and number.isdigit():
        decision_id = f"{meant[0]}-{number}"
    return ledger.decision(decision_id)


def text(told: Explanation, record: DecisionRecord) -> list[str]:
    """Return the explanation as lines."""
    from agent.commands.output import columns

    lines = [f"{told.decision_id}  {time_text(told.at)}  {told.mode}", f"  {told.sentence}", "", "Seen"]
    if record.inputs.snapshot is not None:
        lines += columns(_groups(record.inputs.fleet, record.inputs.snapshot))
    lines += [f"  {sentence}" for sentence in told.seen]
    lines += ["", "Proposed", f"  {told.proposal}"]
    if told.shadow is not None:
        lines.append(f"  (shadow, not done) {told.shadow}")
    lines += [f"  a policy failed: {failure}" for failure in told.failures]
    lines += ["", "Rails"]
    rails = [(step.number, step.rail, step.verdict.value, step.change, step.sentence) for step in told.steps]
    lines += columns(rails) or ["  none was asked"]
    lines += ["", "Done"]
    lines += columns([(time_text(h.at), h.intent_id, h.what) for h in told.timeline]) or [
        "  nothing: no intent came of it"
    ]
    lines += [f"  {intent_id} is still open" for intent_id in told.open_intents]
    return lines


def _groups(fleet: Fleet, snapshot: Snapshot) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("group", "type", "requested", "in service", "warm", "booting", "idle", "CPU")]
    for group, seen in zip(fleet.groups, snapshot.groups, strict=True):
        cpu = "absent" if seen.cpu_mean is None else f"{seen.cpu_mean:.1%}"
        numbers = (seen.requested, seen.in_service, seen.warm, seen.booting, seen.idle_long)
        rows.append((group.key, group.vm_type.name, *numbers, cpu))
    return rows


def register(app: typer.Typer) -> None:
    """Add the verb to the program."""
    app.command(epilog=examples("trimtab explain last", "trimtab explain web-17 --json"))(explain)
