"""`trimtab placement`: where containers would be placed, how many more fit, what to move; nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, LedgerOption, examples, print_json, show

if TYPE_CHECKING:
    from agent.placement.reserve import PlacementPool

PoolOption = Annotated[
    str | None, typer.Option("--pool", metavar="NAME", help="Pool; not needed when there is one.", show_default=False)
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME|file:FILE", help="Another policy than the pool's.", show_default=False),
]
placement = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look into a placement pool: where containers would be placed, how many more fit, which moves empty hosts.",
)


def register(program: typer.Typer) -> None:
    """Add the verb to the program."""
    program.add_typer(placement, name="placement")


@placement.command(
    "what-if",
    epilog=examples("trimtab placement what-if shop=3 mail", "trimtab placement what-if shop=40 --policy wf --json"),
)
def what_if(
    requests: Annotated[
        list[str], typer.Argument(metavar="APPLICATION[=COUNT]...", help="Requests, in the order in which they come.")
    ],
    pool: PoolOption = None,
    is_partial: Annotated[
        bool, typer.Option("--partial", help="Place a part of the containers if not all fit.")
    ] = False,
    lifetime: Annotated[
        str | None, typer.Option("--lifetime", metavar="DURATION", help="Expected lifetime of each, such as 2h.")
    ] = None,
    policy: PolicyOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Place requests one after the other on a copy of a pool, and print their hosts; the agent may be running."""
    from agent.commands.options import duration_s
    from agent.kernel.text import columns, counted
    from agent.ledger.codec import plain
    from agent.placement.records import PlaceRequest

    hint = None if lifetime is None else duration_s("--lifetime", lifetime)
    with _pool(pool, ledger, policy) as found:
        asked = (
            PlaceRequest(found.name, "what-if", *_request(text), partial=is_partial, lifetime_s=hint)
            for text in requests
        )
        result = found.what_if(list(asked))
    if as_json:
        print_json(plain(result))
        return
    lines = []
    for one in result.requests:
        opened = f", {one.opened} opened" if one.opened else ""
        lines.append(f"{one.count} x {one.application}: {counted(len(one.hosts), 'container')} placed{opened}")
        named = {host: one.hosts.count(host) for host in dict.fromkeys(one.hosts)}
        lines += columns(list(named.items()))
        if one.unplaced:
            why = ", ".join(f"{reason} {number}" for reason, number in one.infeasible.items()) or "there are no hosts"
            lines.append(f"  {one.unplaced} would find no host ({why})")
    lines.append(f"{result.pool}: {result.open_before} hosts open now, {result.open_after} with these")
    show(lines)


@placement.command(
    "capacity-for",
    epilog=examples("trimtab placement capacity-for shop", "trimtab placement capacity-for shop --pool main --json"),
)
def capacity_for(
    application: Annotated[str, typer.Argument(metavar="APPLICATION", help="Application, by its id.")],
    pool: PoolOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print how many more containers of an application fit now, and what keeps hosts from taking one."""
    from agent.ledger.codec import plain
    from agent.placement.view import reason_lines

    with _pool(pool, ledger, None) as found:
        room = found.capacity_for(application)
    if as_json:
        print_json(plain(room))
        return
    fits = "any number" if room.without_bound else f"{room.containers:,}"
    show([f"{room.pool}: {fits} more of {application} fit", *reason_lines(room.infeasible)])


@placement.command(
    epilog=examples("trimtab placement repack --budget 30", "trimtab placement repack --pool main --json")
)
def repack(
    budget: Annotated[int, typer.Option("--budget", min=1, max=1000, help="Most moves.")] = 20,
    pool: PoolOption = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print which moves, in which order, would empty hosts, and what each saves; nothing is moved."""
    from agent.kernel.text import columns, counted
    from agent.ledger.codec import plain

    with _pool(pool, ledger, None) as found:
        plan = found.plan_repack(budget)
    if as_json:
        print_json(plain(plan))
        return
    rows = [
        (one.request_id or "(inventory)", max(one.container, 0), one.application, one.source, one.target, one.why)
        for one in plan.moves
    ]
    header = ("request", "container", "application", "from", "to", "why")
    said = f"{counted(len(plan.moves), 'move')} would empty {plan.closed} of {plan.open_hosts} open hosts"
    show([f"{plan.pool}: {said}", *columns([header, *rows] if rows else [])])


def _request(text: str) -> tuple[str, int]:
    """Return application and count of APPLICATION[=COUNT]; BadInput."""
    from domain.errors import BadInput

    name, equals, count = text.partition("=")
    if equals and not (count.isascii() and count.isdigit() and len(count) < 7):
        raise BadInput("REQUEST", text, "give APPLICATION or APPLICATION=COUNT, such as shop=3")
    return name, int(count) if equals else 1


@contextmanager
def _pool(name: str | None, ledger: str | None, policy: str | None) -> Iterator[PlacementPool]:
    """Give a pool of the settings on a ledger, with another policy where one is given; UnknownName, BadInput."""
    from agent.commands.ledger import open_parts
    from agent.placement.decision import PlacementPart

    with open_parts(ledger, os.environ) as parts:
        part = parts.named(PlacementPart.name)
        assert isinstance(part, PlacementPart)
        pool = part.pools.one(name)
        if policy is not None:
            pool.chooser.prefer(policy)
        yield pool
