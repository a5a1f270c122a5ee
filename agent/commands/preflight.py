"""`trimtab preflight`: is everything there in the account and on this host? Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agent.commands.options import JsonOption, app, examples, print_json

if TYPE_CHECKING:
    from agent.kernel.checks import CheckResult


@app.command(epilog=examples("trimtab preflight", "TRIMTAB_MODE=act trimtab preflight --json --wait 30"))
def preflight(
    wait: Annotated[
        float, typer.Option(help="Seconds to listen for measurements where no agent runs; 0: do not.", min=0, max=600)
    ] = 15.0,
    as_json: JsonOption = False,
) -> None:
    """Check the account and this host against the settings, and say what is missing and what to do; change nothing.

    Exit status 1 when something is missing that the agent needs in its mode. Advice and what could not be found out
    do not count.
    """
    import os
    import time
    from dataclasses import asdict

    from agent.kernel.checks import State, passed
    from agent.preflight.check import check_everything
    from agent.settings import load_settings
    from domain.clock import WallClock

    def listen(seconds: float) -> None:
        typer.echo(f"listening for measurements for {seconds:.0f} s", err=True)
        time.sleep(seconds)

    results = []
    for result in check_everything(load_settings(os.environ), WallClock(), wait_s=wait, wait=listen):
        results.append(result)
        if not as_json:
            _show(result)
    is_passed = passed(results)
    if as_json:
        print_json({"passed": is_passed, "findings": [asdict(result) for result in results]})
    else:
        counts = {state: sum(result.state is state for result in results) for state in State}
        typer.echo("\n" + ", ".join(f"{count} {state}" for state, count in counts.items()))
    if not is_passed:
        raise typer.Exit(1)


def _show(result: CheckResult) -> None:
    typer.echo(f"{result.state:<8} {result.subject}: {result.detail}")
    if result.remedy:
        typer.echo(f"{'':<8} -> {result.remedy}")
