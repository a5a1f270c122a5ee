"""`trimtab pause`, `resume`, `pin`, `unpin` and `rearm`: orders to the running agent, or else to its ledger."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.commands.options import (
    FleetOption,
    LedgerOption,
    OwnerOption,
    ReasonOption,
    SubjectOption,
    app,
    duration_s,
    examples,
    owner_of,
)
from agent.kernel.text import duration_text, time_text
from domain.controls import HELD, PauseScope
from domain.errors import BadInput, LedgerUnavailable

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from agent.ledger import Ledger

FIELDS = {
    "fleet": "--fleet",
    "subject": "--subject",
    "for_s": "--for",
    "owner": "--owner",
    "by": "--owner",
    "reason": "--reason",
    "group": "--group",
    "pool": "POOL",
}
"""The options of the command line that stand for fields of an order."""
OF_ONE_DECISION = {
    "pin": ("autoscaling", "pin"),
    "unpin": ("autoscaling", "unpin"),
    "oversubscription/rearm": ("oversubscription", "rearm"),
}
"""Orders that one decision alone knows: their route, and the decision with its own name for them."""


@app.command(
    epilog=examples(
        'trimtab pause in --reason "load test" --for 2h', 'trimtab pause all --reason "incident 42" --fleet web'
    )
)
def pause(
    scope: Annotated[PauseScope, typer.Argument(help="Direction to hold.")],
    reason: ReasonOption,
    lasting: Annotated[
        str | None, typer.Option("--for", help="How long: 90s, 15m, 2h, 1d; else until resumed.")
    ] = None,
    fleet: FleetOption = None,
    subject: SubjectOption = None,
    ledger: LedgerOption = None,
    owner: OwnerOption = None,
) -> None:
    """Hold changes in one direction or both, until resumed or for a time; works while the agent is down, too."""
    lasting_s = None if lasting is None else duration_s("--for", lasting)
    answer = ordered(
        ledger,
        "pause",
        subject=subject,
        fleet=fleet,
        scope=scope,
        owner=owner_of(owner),
        reason=reason,
        for_s=lasting_s,
    )
    made, end = answer["pause"], "until resumed"
    if made["until"] is not None:
        end = f"until {time_text(made['until'])} ({duration_text(made['until'] - made['since'])})"
    typer.echo(f"{answer['decision']}/{answer['subject']}: {HELD[scope]} is paused {end}")


@app.command(epilog=examples("trimtab resume", "trimtab resume in --fleet web"))
def resume(
    scope: Annotated[PauseScope, typer.Argument(help="Pause to lift; all lifts every one.")] = PauseScope.ALL,
    fleet: FleetOption = None,
    subject: SubjectOption = None,
    ledger: LedgerOption = None,
    owner: OwnerOption = None,
) -> None:
    """Lift pauses."""
    answer = ordered(ledger, "resume", subject=subject, fleet=fleet, scope=scope, owner=owner_of(owner))
    done = f"{HELD[scope]} is resumed" if answer["lifted"] else f"there was no pause of {HELD[scope]}"
    still = [f"{HELD[PauseScope(p['scope'])]}, paused by {p['owner']} ({p['reason']})" for p in answer["left"]]
    typer.echo(
        f"{answer['decision']}/{answer['subject']}: {done}{'; still held: ' + '; '.join(still) if still else ''}"
    )


@app.command(
    epilog=examples(
        'trimtab pin 12 --for 2h --reason "product launch"',
        'trimtab pin 3 --group workers_l --for 1d --reason "large jobs tonight"',
    )
)
def pin(
    size: Annotated[int, typer.Argument(metavar="N", min=0, help="VMs of the fleet, or of the group with --group.")],
    lasting: Annotated[str, typer.Option("--for", help="How long: 90s, 15m, 2h, 1d.")],
    reason: ReasonOption,
    group: Annotated[str | None, typer.Option("--group", metavar="KEY", help="Pin this group only.")] = None,
    fleet: FleetOption = None,
    ledger: LedgerOption = None,
    owner: OwnerOption = None,
) -> None:
    """Keep a fleet, or one group, at a size for a time; it ends by itself. A pause has priority over it.

    N VMs of a fleet are spread from its present sizes: more come from the cheapest type with room, fewer go from the
    most expensive type first.
    """
    lasting_s = duration_s("--for", lasting)
    answer = ordered(
        ledger, "pin", fleet=fleet, size=size, group=group, owner=owner_of(owner), reason=reason, for_s=lasting_s
    )
    made, before = answer["pin"], answer["before"]
    typer.echo(
        f"{answer['fleet']}: pinned at {_sizes(made)} until {time_text(made['until'])} ({duration_text(lasting_s)})"
    )
    if before is not None:
        typer.echo(f"it takes the place of {before['owner']}'s pin at {_sizes(before)} ({before['reason']})")


def _sizes(pin: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {count}" for key, count in pin["desired"].items())


@app.command(epilog=examples("trimtab unpin", "trimtab unpin --fleet web"))
def unpin(fleet: FleetOption = None, ledger: LedgerOption = None, owner: OwnerOption = None) -> None:
    """Lift the pin, so that the policy decides again."""
    answer = ordered(ledger, "unpin", fleet=fleet, owner=owner_of(owner))
    typer.echo(f"{answer['fleet']}: {'the pin is lifted' if answer['lifted'] else 'there was no pin'}")


@app.command(
    epilog=examples(
        'trimtab rearm --reason "batch moved to other machines"', 'trimtab rearm main --reason "load test is over"'
    )
)
def rearm(
    reason: Annotated[
        str, typer.Option("--reason", help="Cause of the hot machines, and why it is resolved; for the journal.")
    ],
    pool: Annotated[
        str | None, typer.Argument(metavar="[POOL]", help="Pool; not needed when there is one.", show_default=False)
    ] = None,
    owner: OwnerOption = None,
) -> None:
    """Let the rates of a rolled-back pool go down again.

    Three hot hours in 120 roll a pool back: every new VM is reserved in full until a person has looked into it.
    The page and `GET /api/v1/oversubscription` tell which machines were hot and whose VMs made them so.

    After it, rates go down one level in two hours as the policy asks, and hot hours from before no longer count. The
    running agent does it; there is nothing to do while it is down, for nothing is oversubscribed then.
    """
    name = ordered(None, "oversubscription/rearm", pool=pool, by=owner_of(owner), reason=reason)["pool"]
    typer.echo(f"{name}: re-armed; rates go down again from the next hour, one level in two hours")


def ordered(ledger: str | None, verb: str, **order: Any) -> Mapping[str, Any]:
    """Give an order to the running agent, or to the ledger when `--ledger` names one or no agent listens.

    order: the fields of the route's body, None for one that is not given. Returns what the route answers. BadInput
    when the order is refused, LedgerUnavailable when it could not be carried out.
    """
    from agent.api.unix_socket import connected
    from agent.commands.ledger import open_ledger
    from agent.settings.location import socket_location

    order = {name: value for name, value in order.items() if value is not None}
    connection = None
    if ledger is None:
        try:
            connection = connected(socket_location(os.environ))
        except OSError:
            connection = None
    if connection is not None:
        with closing(connection):
            return _sent(connection, verb, order)
    with open_ledger(ledger, to_write=True) as book:
        return _written(book, verb, order)


def _sent(connection: HTTPConnection, verb: str, order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Hand an order to the running agent."""
    from http.client import HTTPException

    try:
        connection.request("POST", f"/api/v1/{verb}", json.dumps(order), {"Content-Type": "application/json"})
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read())
    except (OSError, HTTPException, ValueError) as error:
        raise LedgerUnavailable(
            f"the agent took the order and did not answer ({type(error).__name__}): see `trimtab status` for "
            "whether it holds; with --ledger the order goes to the ledger without the agent"
        ) from error
    if status == 200:
        return dict(answer)
    if not answer["wrong"]:
        raise LedgerUnavailable(f"the agent answers: {answer['detail']}")
    wrong = answer["wrong"][0]
    field = str(wrong["field"]).removeprefix("body.")
    value = order.get("size") if field == "N" else order.get(field)
    raise BadInput(FIELDS.get(field, field), value if value is not None else "", str(wrong["remedy"]))


def _written(book: Ledger, verb: str, order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write an order into the ledger."""
    from agent.commands.ledger import installed
    from agent.kernel import controls
    from domain.subject import Subject

    parts, name, now = installed(book), order.get("fleet"), time.time()
    if verb in OF_ONE_DECISION:
        decision, own = OF_ONE_DECISION[verb]
        given = {key: value for key, value in order.items() if key != "fleet"}
        return parts.named(decision).carry_out(own, name, given, now)
    field = "fleet" if order.get("subject") is None else "subject"
    part, name = parts.meant(order.get(field), field=FIELDS[field])
    scope, owner, which = order["scope"], order["owner"], Subject(part.name, name).fields()
    if verb == "resume":
        return {**which, **asdict(controls.resume(book, part.name, name, scope, owner=owner, now=now))}
    made = controls.pause(
        *(book, part.name, name, scope), owner=owner, reason=order["reason"], now=now, lasting_s=order.get("for_s")
    )
    return {**which, "pause": asdict(made)}
