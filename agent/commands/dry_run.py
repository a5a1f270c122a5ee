"""`trimtab dry-run`: the whole loop against a fake AWS with real input, and a section for each other decision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent.commands.options import app, examples, setting_given
from domain.errors import BadInput, TrimtabError

INTERRUPTED = 130
EPILOG = "\n\n".join(
    (
        "\n".join(
            (
                "\b",
                "Faults:",
                "  story     a capacity error, a metric gap that is held, a spot notice that is drained",
                "  none      nothing goes wrong",
                "  throttle  AWS throttles: every call for five minutes, then every third for ten",
                "  capacity  AWS runs out of the largest type for half an hour",
                "  gap       no measurement arrives for six minutes: hold, then the safe floor",
                "  spot      AWS takes a VM back",
                "  timeout   changes take effect, but AWS's answers never arrive",
            )
        ),
        examples(
            "trimtab dry-run",
            "trimtab dry-run --page",
            "trimtab dry-run --fault throttle --headless",
            "trimtab dry-run --section admission",
            "trimtab dry-run --fault none --set FLEETS__web__POLICY=learned",
            "trimtab dry-run --fault none --section fleet --world my.toml --workload jobs.csv",
        ),
    )
)


@app.command("dry-run", epilog=EPILOG)
def dry_run(
    fault: Annotated[
        str,
        typer.Option(metavar="NAME", help="Faults, see below: story, none, throttle, capacity, gap, ..."),
    ] = "story",
    speed: Annotated[
        float, typer.Option(min=1.0, max=600.0, help="Simulated seconds per second at most: 60 makes an hour a minute.")
    ] = 600.0,
    minutes: Annotated[int, typer.Option(min=5, max=240, help="Simulated minutes.")] = 240,
    seed: Annotated[int, typer.Option(help="Seed of the choice of jobs, of boot times and of faults.")] = 1993,
    workload: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Jobs of one core, as for `rehearse`; nasa is the day in an hour.")
    ] = "nasa-day",
    world: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Whose fleet: a world of EC2 types; types, prices, limits and minimum count. Else 3 of each of 3.",
        ),
    ] = None,
    mode: Annotated[str, typer.Option(metavar="MODE", help="act, or observe: decide and record only.")] = "act",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the agent, without TRIMTAB_; repeatable."),
    ] = None,
    keep: Annotated[
        Path, typer.Option(metavar="DIRECTORY", help="Where ledger and log are kept; an earlier run's are replaced.")
    ] = Path(".trimtab/dry-run"),
    headless: Annotated[bool, typer.Option("--headless", help="Lines instead of the live view.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Serve the agent's page on this machine until Ctrl-C.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="All tables, the events of every section, and each result in full.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Events as JSON, one object per line.")] = False,
    section: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="fleet: the fleet alone. A decision: its section alone. all.",
        ),
    ] = "all",
) -> None:
    """Run the agent for four simulated hours against a fake AWS on this machine, and show what it does.

    Needs no account and no network. Jobs arrive as in a recorded day of a real machine, workers pull and run them and
    report over TCP, faults strike, and the loop of `trimtab run` scales the fleet. Meanwhile another process plays a
    section for every other decision, with its ledger in `sections`: days of a cluster or of pools in virtual time. The
    result is ten lines: what the agent did, its bill beside AWS target tracking and the fleet at its maximum, a line
    for each other decision, and three commands to try.

    Exits with status 1 when the ledger lacks an event that the fault plan requires of a run of this length, 130 when
    stopped by Ctrl-C.
    """
    from agent.rehearsal.faults import plan_named
    from agent.rehearsal.run import DryRunOptions, Ending, play
    from agent.rehearsal.sections import section_names

    if section not in section_names():
        raise BadInput("--section", section, f"choose one of: {', '.join(section_names())}")
    overrides = dict(setting_given(text) for text in setting or [])
    options = DryRunOptions(plan_named(fault), speed, seed, minutes, workload, mode, keep, overrides, page, world)
    ending = play(options, section, headless=headless, as_json=as_json, verbose=verbose)
    if ending is Ending.STOPPED:
        raise typer.Exit(INTERRUPTED)
    if ending is Ending.INCOMPLETE:
        raise TrimtabError("the ledger lacks an event that the fault plan requires: see the missing events above")
